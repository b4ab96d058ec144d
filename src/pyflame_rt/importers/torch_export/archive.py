"""Archives of torch.export (.pt2): a program as JSON, weights as bytes; torch is not needed."""

from __future__ import annotations

import json
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError, UnsupportedFormatError
from pyflame_rt.importers.tensor_file import header_mapping
from pyflame_rt.importers.torch_pickle import MAX_PICKLE, Storage, TensorArchive

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DTYPES", "Exported", "read_exported"]

# The file's numbers for element types; they are not those of TorchScript.
DTYPES = {
    1: DType.UInt8, 2: DType.Int8, 3: DType.Int16, 4: DType.Int32, 5: DType.Int64, 6: DType.Float16, 7: DType.Float32,
    8: DType.Float64, 10: DType.Complex64, 11: DType.Complex128, 12: DType.Bool, 13: DType.BFloat16,
}  # fmt: skip


class Exported(NamedTuple):
    """What an archive holds.

    Attributes:
        program: the JSON of the graph module: its graph and its signature.
        tensors: parameters, buffers and constants by name.
        constraints: the least and the most of sizes that stay open.
    """

    program: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]
    constraints: dict[str, dict[str, Any]]


class _ExportArchive(TensorArchive):
    anchor = "archive_format"


def read_exported(path: Path, max_bytes: int) -> Exported:
    """Read an archive.

    Args:
        path: the file.
        max_bytes: that all tensors together may take.

    Raises:
        InvalidModelError: the archive is damaged, or holds more than ``max_bytes``.
        UnsupportedFormatError: it is of a version that keeps its weights otherwise.
    """
    try:
        with zipfile.ZipFile(path) as file:
            archive = _ExportArchive(path, file, max_bytes)
            if f"{archive.root}models/model.json" not in archive.members:
                raise UnsupportedFormatError(f"{path}: holds no program as JSON; save it again with this year's torch")
            program = header_mapping(path, archive.member("models/model.json", MAX_PICKLE))
            tensors = _tensors(archive, "weights") | _tensors(archive, "constants")
            return Exported(program["graph_module"], tensors, program["range_constraints"])
    except PyFlameRTError:
        raise
    except (
        ValueError, TypeError, LookupError, AttributeError, OverflowError, EOFError, RuntimeError, NotImplementedError,
        MemoryError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        raise InvalidModelError(f"{path}: not a program of torch.export, or damaged: {error}") from error


def _tensors(archive: TensorArchive, folder: str) -> dict[str, np.ndarray[Any, Any]]:
    listing = f"data/{folder}/model_{folder}_config.json"
    if archive.root + listing not in archive.members:
        return {}
    config = json.loads(archive.member(listing, MAX_PICKLE))["config"]
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, entry in config.items():
        if entry["use_pickle"] or entry["tensor_meta"] is None:
            raise UnsupportedFormatError(f"{archive.path}: {name!r} is pickled, and no code of a file is run")
        found[name] = _tensor(archive, f"data/{folder}/{entry['path_name']}", entry["tensor_meta"])
    return found


def _tensor(archive: TensorArchive, member: str, meta: dict[str, Any]) -> np.ndarray[Any, Any]:
    if member not in archive.storages:
        archive.storages[member] = np.frombuffer(bytearray(archive.member(member, archive.max_bytes)), np.uint8)
    sizes, strides = ([int(n["as_int"]) for n in meta[key]] for key in ("sizes", "strides"))
    dtype = DTYPES[meta["dtype"]].label
    offset = int(meta["storage_offset"]["as_int"])
    return archive.tensor(Storage(archive.storages[member], dtype), offset, sizes, strides)
