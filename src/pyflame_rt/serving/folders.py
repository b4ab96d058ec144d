"""Folders of models: ``name/version/model.onnx``, ``name/model.onnx`` or ``name.onnx``, with a config.yaml each.

A folder of Hugging Face, with its config.json, is in the place of model.onnx.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pyflame_rt.graph.errors import InputError, InvalidModelError, ModelNotFoundError
from pyflame_rt.serving.config import ModelConfig, valid_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

__all__ = ["Stamp", "find_models", "is_model", "read_config", "stamps_in", "stamps_of"]

Stamp = tuple[int, int, int]  # what changes when a file is written

SUFFIXES = (".onnx", ".pfm")
CONFIG = "config.yaml"
DEPTH = 3  # name/version/model.onnx
_FIXED = ("name", "version")  # said by the folders


def find_models(folder: str | PathLike[str], defaults: ModelConfig | None = None) -> Iterator[ModelConfig | Exception]:
    """The models of a folder; where a config.yaml cannot be used, the exception that says why.

    Raises:
        ModelNotFoundError: There is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ModelNotFoundError(f"there is no folder {str(root)!r} of models")
    base = ModelConfig() if defaults is None else defaults
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file() and entry.suffix in SUFFIXES:
            yield _described(base, entry.stem, "1", entry, [])
        elif entry.is_dir():
            yield from _in_folder(base, entry)


def stamps_of(paths: Iterable[str | PathLike[str]]) -> dict[Path, Stamp]:
    """The files among these, with what tells whether they were written since."""
    found = {}
    for path in paths:
        try:
            facts = os.stat(path)
        except OSError:  # gone meanwhile
            continue
        found[Path(path).absolute()] = _stamp(facts)
    return found


def stamps_in(folder: str | PathLike[str]) -> dict[Path, Stamp]:
    """The same for every file of a folder that may matter: models and their settings."""
    return dict(_stamped(os.path.abspath(folder), DEPTH))


def _stamped(folder: str, depth: int) -> Iterator[tuple[Path, Stamp]]:
    try:
        with os.scandir(folder) as listed:
            entries = list(listed)
    except OSError:  # gone meanwhile, or no folder
        return
    for entry in entries:
        if entry.name.endswith(SUFFIXES) or entry.name == CONFIG:
            with contextlib.suppress(OSError):
                yield Path(entry.path), _stamp(entry.stat())
        elif depth > 1 and entry.is_dir():
            yield from _stamped(entry.path, depth - 1)


def _stamp(facts: os.stat_result) -> Stamp:
    return facts.st_mtime_ns, facts.st_size, facts.st_ino


def _in_folder(base: ModelConfig, folder: Path) -> Iterator[ModelConfig | Exception]:
    above = [folder / CONFIG]
    own = _model_file(folder)
    if own is not None:
        yield _described(base, folder.name, "1", own, above)
    if own == folder:  # what is in it is the model's
        return
    for version in sorted(folder.iterdir()):
        found = _model_file(version) if version.is_dir() and not version.name.startswith(".") else None
        if found is not None:
            yield _described(base, folder.name, version.name, found, [*above, version / CONFIG])


def is_model(folder: Path) -> bool:
    """Whether a folder is a model itself, of Hugging Face."""
    return (folder / "config.json").is_file()


def _model_file(folder: Path) -> Path | None:
    """``model.onnx`` or ``model.pfm``, else the only model there is, or the folder itself."""
    if is_model(folder):
        return folder
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file())
    named = [p for p in files if p.stem == "model"]
    if named:
        return named[0]
    return files[0] if len(files) == 1 else None


def _described(base: ModelConfig, name: str, version: str, path: Path, configs: list[Path]) -> ModelConfig | Exception:
    if not (valid_name(name) and valid_name(version)):
        return InputError(f"{str(path)!r}: models and versions are named with letters, digits, '.', '_' and '-'")
    config = dataclasses.replace(base, name=name, version=version, model_path=str(path))
    try:
        for file in configs:
            if file.is_file():
                config = read_config(file, config)
    except (InputError, InvalidModelError) as error:
        return error
    return config


def read_config(file: Path, base: ModelConfig) -> ModelConfig:
    """The settings of a config.yaml over others.

    Raises:
        InputError: It is not YAML, or has a setting or a value that is not known.
    """
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{str(file)!r} cannot be read: {' '.join(str(error).split())}") from None
    if found is None:
        return base
    if not isinstance(found, dict):
        raise InputError(f"{str(file)!r} must hold settings, one a line: name: value")
    known = {f.name for f in dataclasses.fields(ModelConfig)} - {*_FIXED, "model_path"}
    for key, value in found.items():
        if key not in known:
            raise InputError(f"{str(file)!r}: there is no setting {key!r}. Settings: {', '.join(sorted(known))}")
        _check(file, key, value, getattr(ModelConfig(), key))
    changed = dataclasses.replace(base, **found)
    problems = changed.validate()
    if problems:
        raise InputError(f"{str(file)!r}: " + "; ".join(problems))
    return changed


def _check(file: Path, key: str, value: Any, example: Any) -> None:
    wanted: Any = float | int | None if example is None else type(example)
    fits = isinstance(value, wanted) and (isinstance(value, bool) == (wanted is bool))
    if wanted is list and fits:
        inner = int if key == "preferred_batch_sizes" else str
        fits = all(isinstance(item, inner) for item in value)
    if not fits:
        kind = "number" if example is None else type(example).__name__
        raise InputError(f"{str(file)!r}: {key} must be a {kind}, got {value!r}")
