"""Errors for names that are not there: what to write instead, or the nearest name that is (edit distance)."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["INSTEAD", "missing"]

# What torch has and PyFlame has not, by the owner's name: what to do instead.
INSTEAD: dict[str, dict[str, str]] = {
    "pyflame": {
        "sparse_coo_tensor": "tensors are dense; zeros(size).index_put_(tuple(indices), values, accumulate=True)",
        "sparse_csr_tensor": "tensors are dense; scatter the values into zeros(size)",
        "spmm": "tensors are dense; use matmul",
        "sparse": "tensors are dense; pyflame_rt.pruning keeps sparse weights for inference",
        "multiprocessing": "use Python's multiprocessing with the spawn method, or DataLoader(num_workers=)",
        "mps": "there is no such device; tensors are on 'cpu'",
        "xpu": "there is no such device; tensors are on 'cpu'",
        "fx": "pf.get_graph(tensor) and pf.export give the graph of a computation",
        "ao": "use pyflame_rt.quantization on the exported graph",
        "profiler": "use pf.tools.Profiler",
    },
    "pyflame.nn": {
        "DataParallel": "one process computes here; call the module itself",
        "SyncBatchNorm": "one process computes here; use BatchNorm1d, BatchNorm2d or BatchNorm3d",
        "parallel": "one process computes here; call the module itself",
        "modules": "layers are in pyflame.nn itself",
        "quantized": "use pyflame_rt.quantization on the exported graph",
    },
    "pyflame.serialization": {
        "safe_globals": "files hold data only, so there is no class to allow",
        "add_safe_globals": "files hold data only, so there is no class to allow",
    },
    "Tensor": {
        "to_sparse": "tensors are dense; nonzero() gives the places of what is not zero",
        "to_dense": "tensors are dense already",
        "resize_": "a tensor keeps its size; use reshape, or copy into a new one",
        "resize": "a tensor keeps its size; use reshape, or copy into a new one",
        "set_": "assign to .data instead",
        "share_memory_": "tensors belong to one process; pass arrays of multiprocessing.shared_memory",
        "xpu": "there is no such device; tensors are on 'cpu'",
        "mps": "there is no such device; tensors are on 'cpu'",
        "storage": "use .data_ptr(), .storage_offset() and .stride()",
        "untyped_storage": "use .data_ptr(), .storage_offset() and .stride()",
        "names": "dimensions have numbers, not names",
    },
}


def missing(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that an owner does not have.

    Args:
        owner: a module's name, or a class's.
        name: what was asked for.
        known: the names that are there.

    Example:
        >>> print(missing("pyflame.nn", "Linaer", ["Linear", "Conv2d"]))
        pyflame.nn has no attribute 'Linaer'; did you mean 'Linear'?
    """
    instead = INSTEAD.get(owner, {}).get(name)
    if instead is not None:
        return AttributeError(f"{owner} has no attribute {name!r}: {instead}", name=name)
    public = [other for other in known if not other.startswith("_")]
    by_case = {other.lower(): other for other in public}
    near = [by_case[match] for match in difflib.get_close_matches(name.lower(), list(by_case), 3, 0.7)]
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)
