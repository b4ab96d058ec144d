"""Which importer reads which file."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyflame_rt.cache.installed import is_declared
from pyflame_rt.graph.errors import UnsupportedFormatError
from pyflame_rt.importers.base import Importer, ImportOptions, ImportResult
from pyflame_rt.importers.detection import detect

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_importer", "get_importer", "import_model", "is_original", "list_importers", "register_importer"]

# Imported when first asked for; the modules bring in onnx or torch.
_BUILTIN = {
    "gguf": ("pyflame_rt.importers.gguf.importer", "GGUFImporter"),
    "huggingface": ("pyflame_rt.importers.huggingface.importer", "HuggingFaceImporter"),
    "keras": ("pyflame_rt.importers.keras_importer", "KerasImporter"),
    "onnx": ("pyflame_rt.importers.onnx_importer", "ONNXImporter"),
    "pytorch": ("pyflame_rt.importers.torch_importer", "PyTorchImporter"),
    "torch-export": ("pyflame_rt.importers.torch_export.importer", "TorchExportImporter"),
    "torchscript": ("pyflame_rt.importers.torchscript.importer", "TorchScriptImporter"),
}
_GROUP = "pyflame_rt.importers"
_factories: dict[str, Callable[[], Importer]] = {}


def _load(module: str, name: str) -> Callable[[], Importer]:
    return lambda: getattr(importlib.import_module(module), name)()


_factories.update({name: _load(*where) for name, where in _BUILTIN.items()})
_original = dict(_factories)
_declared: list[bool] = []  # whether entry points were looked at


def is_original() -> bool:
    """Whether files are read by this package's importers alone.

    Example:
        >>> is_original()
        True
    """
    return _known() == _original


def register_importer(name: str, factory: Callable[[], Importer]) -> None:
    """Make an importer known, for its name and the suffixes it lists.

    Example:
        >>> class Lines(Importer):
        ...     name, suffixes = "lines", (".lines",)
        >>> register_importer("lines", Lines)
        >>> get_importer("model.lines").name
        'lines'
        >>> del _factories["lines"]
    """
    _factories[name] = factory


def _known() -> dict[str, Callable[[], Importer]]:
    """All importers, those that other packages declare in the group ``pyflame_rt.importers`` included."""
    if not _declared:
        _declared.append(True)
        if is_declared(_GROUP):
            from importlib.metadata import entry_points

            for entry in entry_points(group=_GROUP):
                _factories.setdefault(entry.name, lambda entry=entry: entry.load()())
    return _factories


def list_importers() -> dict[str, Importer]:
    """Every importer, by name; those of other packages come from their entry points ``pyflame_rt.importers``.

    Example:
        >>> list_importers()["onnx"].suffixes
        ('.onnx',)
    """
    return {name: factory() for name, factory in _known().items()}


def find_importer(name_or_path: str | os.PathLike[str]) -> Importer | None:
    """The importer of that name, or for that file, by its content, then by its suffix; None when there is none."""
    if isinstance(name_or_path, str) and name_or_path in _known():
        return _factories[name_or_path]()
    if kind := detect(name_or_path):
        return next((i for i in list_importers().values() if kind in i.kinds), None)
    suffix = Path(name_or_path).suffix.lower()
    if suffix == ".onnx" and is_original():  # the others need not be loaded
        return _factories["onnx"]()
    matching = [i for i in list_importers().values() if suffix in i.suffixes]
    # Several formats share a suffix (.pt): the first that recognises the file takes it.
    return next((i for i in matching if i.can_import(name_or_path)), None)


def get_importer(name_or_path: str | os.PathLike[str]) -> Importer:
    """The importer of that name, or for that file.

    Raises:
        UnsupportedFormatError: There is none.

    Example:
        >>> get_importer("model.onnx").name
        'onnx'
    """
    found = find_importer(name_or_path)
    if found is None:
        known = {name: importer.suffixes for name, importer in list_importers().items()}
        listed = ", ".join(f"{name} ({' '.join(s)})" for name, s in known.items())
        raise UnsupportedFormatError(
            f"no importer reads {os.fspath(name_or_path)!r}. Importers: {listed}; "
            f".pfm files are read by pyflame_rt.load_model"
        )
    return found


def import_model(path: str | os.PathLike[str], options: ImportOptions | None = None, **more: Any) -> ImportResult:
    """Import a model with the importer its content or suffix asks for; failures are in the result.

    Args:
        path: the file.
        options: how.
        more: what that importer takes besides, such as ``definer`` for state dicts of torch.

    Example:
        >>> import_model("no_such_file.onnx").error
        "there is no file 'no_such_file.onnx'"
    """
    try:
        importer = get_importer(path)
    except UnsupportedFormatError as error:
        return ImportResult(False, None, str(error), exception=error)
    return importer.import_model(path, options, **more)
