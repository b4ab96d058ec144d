"""What a model file holds, by its first bytes and the names in its archive; nothing is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.graph.errors import InvalidModelError

if TYPE_CHECKING:
    import os

__all__ = ["detect"]

# The number at the start of files that torch wrote before 1.6.
_TORCH_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def detect(path: str | os.PathLike[str]) -> str:
    """The kind of a file, by its content.

    It is "torch", "torch-legacy", "torchscript", "torch-export", "keras", "safetensors" or "gguf"; others are of the
    kind "". A folder with a config.json is "huggingface". Files of ONNX and .pfm go by their suffix. A file that does
    not exist is of no kind.

    Example:
        >>> detect("missing.pt")
        ''
    """
    file = Path(path)
    if (file / "config.json").is_file():
        return "huggingface"
    if not file.is_file():
        return ""
    try:
        with file.open("rb") as opened:
            head = opened.read(16)
    except OSError as error:
        raise InvalidModelError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    if head.startswith(_TORCH_LEGACY):
        return "torch-legacy"
    if head.startswith(b"PK\x03\x04"):
        return _archive_kind(file)
    if head.startswith(b"GGUF"):
        return "gguf"
    length = int.from_bytes(head[:8], "little")
    return "safetensors" if head[8:9] == b"{" and length <= file.stat().st_size - 8 else ""


def _archive_kind(file: Path) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            listed = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return ""
    names = {name.partition("/")[2] for name in listed}
    if "constants.pkl" in names:
        return "torchscript"
    if "archive_format" in names or "serialized_exported_program.json" in names:
        return "torch-export"
    if {"metadata.json", "config.json", "model.weights.h5"} <= listed:
        return "keras"
    return "torch" if "data.pkl" in names else ""
