"""Checkpoints of torch (``.pt``, ``.pth``, ``.bin``) as plain data with NumPy arrays; no code of the file is run."""

from __future__ import annotations

import pickle
import zipfile
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InvalidModelError, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["read_checkpoint"]


def read_checkpoint(path: Path, convert: Callable[[Any], Any], max_bytes: int | None = None) -> Any:
    """What ``torch.save`` wrote, each tensor given to ``convert``.

    Args:
        path: the file.
        convert: makes what is wanted of a torch tensor.
        max_bytes: that the parts of the file may take together.

    Raises:
        MissingExtra: torch is not installed.
        InvalidModelError: the file is damaged, or holds objects that only running its code would make.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(f"reading {path.name!r} needs torch: pip install 'pyflame[torch]'") from error
    if max_bytes is not None:
        _check_total(path, max_bytes)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidModelError(
            f"{path}: holds more than tensors and plain data, or is damaged; save model.state_dict() in torch "
            f"({str(error).splitlines()[0]})"
        ) from error
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, EOFError, OSError, MemoryError) as error:
        raise InvalidModelError(f"{path}: not a checkpoint of torch: {error}") from error
    return _converted(data, convert, torch.Tensor)


def _check_total(path: Path, max_bytes: int) -> None:
    try:
        with zipfile.ZipFile(path) as file:
            total = sum(member.file_size for member in file.infolist())
    except (
        zipfile.BadZipFile,
        ValueError,
        OSError,
        EOFError,
        NotImplementedError,
    ):  # an old file, or none: torch will say
        return
    if total > max_bytes:
        raise InvalidModelError(f"{path}: holds {total} bytes; max_bytes={max_bytes} allows no more")


def _converted(data: Any, convert: Callable[[Any], Any], kind: type) -> Any:
    if isinstance(data, kind):
        return convert(data)
    if isinstance(data, dict):
        return {key: _converted(value, convert, kind) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_converted(value, convert, kind) for value in data)
    return data
