"""Checkpoints of a training: arrays and facts in one .npz file, never pickled, written whole or not at all."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError
from pyflame_rt.graph.writing import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_checkpoint", "write_checkpoint"]

_FACTS = "facts.json"


def write_checkpoint(path: str | os.PathLike[str], arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(folder + "/c.npz", {"w": np.ones(2)}, {"step": 3})
        ...     read_checkpoint(folder + "/c.npz")
        ({'w': array([1., 1.])}, {'step': 3})
    """
    text = np.frombuffer(json.dumps(dict(facts)).encode(), np.uint8)
    named: Any = {**arrays, _FACTS: text}
    with replacing(path) as file:
        np.savez(file, **named)


def read_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and facts of a checkpoint."""
    name = os.fspath(path)
    if not os.path.isfile(path):
        raise ModelNotFoundError(f"there is no checkpoint {name!r}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        facts = json.loads(arrays.pop(_FACTS).tobytes())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise InvalidModelError(f"{name!r} is no checkpoint of a training: {error}") from error
    if not isinstance(facts, dict):
        raise InvalidModelError(f"{name!r} is no checkpoint of a training")
    return arrays, facts
