"""Collectives under torch's names, for the one process there is: rank 0 of a world of one.

Code that is written for many processes runs unchanged: sums over all processes are the tensor itself, and what is
gathered is one tensor. More than one process is refused, never pretended.

Example:
    >>> import pyflame as pf
    >>> from pyflame import distributed as dist
    >>> dist.is_initialized(), dist.get_rank(), dist.get_world_size()
    (False, 0, 1)
    >>> gathered = [pf.zeros(2)]
    >>> dist.all_gather(gathered, pf.tensor([1.0, 2.0]))
    >>> gathered[0].tolist()
    [1.0, 2.0]
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame.tensors import Tensor

__all__ = [
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "destroy_process_group",
    "gather",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "reduce",
    "scatter",
]

_group = threading.Event()  # set between init_process_group and destroy_process_group


class ReduceOp(Enum):
    """How the tensors of all processes are joined."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


class Work:
    """A collective that was started; with one process it is done at once.

    Example:
        >>> Work().wait()
        True
    """

    def wait(self) -> bool:
        """Wait for the result."""
        return True

    def is_completed(self) -> bool:
        """Whether the result is there."""
        return True


def is_available() -> bool:
    """Whether this module can be used: always.

    Example:
        >>> is_available()
        True
    """
    return True


def is_initialized() -> bool:
    """Whether :func:`init_process_group` was called."""
    return _group.is_set()


def init_process_group(backend: str | None = None, *, rank: int = 0, world_size: int = 1, **_: Any) -> None:
    """Begin to work as a group, of this process alone.

    Raises:
        ValueError: a world of more than one process is asked for.

    Example:
        >>> init_process_group(world_size=1)
        >>> is_initialized()
        True
        >>> destroy_process_group()
    """
    del backend
    if world_size not in (-1, 1) or rank not in (-1, 0):
        raise ValueError(f"rank {rank} of {world_size} processes: one process, of rank 0, is all there is")
    if _group.is_set():
        raise ValueError("the process group is there already; destroy_process_group() ends it")
    _group.set()


def destroy_process_group() -> None:
    """Work on alone."""
    _group.clear()


def get_backend() -> str:
    """The name of what moves data between processes: none does."""
    return "single"


def get_rank() -> int:
    """The number of this process: 0."""
    return 0


def get_world_size() -> int:
    """How many processes there are: 1."""
    return 1


def barrier() -> None:
    """Wait for all processes, that is for none."""


def _done(async_op: bool) -> Work | None:
    return Work() if async_op else None


def _checked(tensor: Any, op: Any = ReduceOp.SUM) -> Tensor:
    if not hasattr(tensor, "_value"):
        raise TypeError(f"a tensor is needed, got {type(tensor).__name__}")
    if not isinstance(op, ReduceOp):
        raise TypeError(f"op is one of {', '.join(f'ReduceOp.{o.name}' for o in ReduceOp)}, got {op!r}")
    return tensor


def _root(rank: int, what: str) -> None:
    if rank != 0:
        raise ValueError(f"{what}={rank}: rank 0 is the only one")


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, *, async_op: bool = False) -> Work | None:
    """Join the tensors of all processes, in place: the tensor stays as it is.

    Example:
        >>> import pyflame as pf
        >>> loss = pf.tensor([3.0])
        >>> all_reduce(loss, op=ReduceOp.SUM)
        >>> loss.tolist()
        [3.0]
    """
    _checked(tensor, op)
    return _done(async_op)


def reduce(tensor: Tensor, dst: int, op: ReduceOp = ReduceOp.SUM, *, async_op: bool = False) -> Work | None:
    """Join the tensors of all processes in that of rank ``dst``."""
    _checked(tensor, op)
    _root(dst, "dst")
    return _done(async_op)


def broadcast(tensor: Tensor, src: int, *, async_op: bool = False) -> Work | None:
    """Give all processes the tensor of rank ``src``."""
    _checked(tensor)
    _root(src, "src")
    return _done(async_op)


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, *, async_op: bool = False) -> Work | None:
    """Write the tensor of each process to its place in a list: one place, one tensor."""
    _checked(tensor)
    if len(tensor_list) != 1:
        raise ValueError(f"a list of {len(tensor_list)} tensors for a world of one process")
    if tuple(tensor_list[0].shape) != tuple(tensor.shape):
        raise ValueError(f"a tensor of shape {list(tensor.shape)} for a place of shape {list(tensor_list[0].shape)}")
    tensor_list[0].copy_(tensor.detach())
    return _done(async_op)


def all_gather_object(object_list: list[Any], obj: Any) -> None:
    """Write the object of each process to its place in a list."""
    if len(object_list) != 1:
        raise ValueError(f"a list of {len(object_list)} objects for a world of one process")
    object_list[0] = obj


def gather(tensor: Tensor, gather_list: Sequence[Tensor] | None = None, dst: int = 0) -> None:
    """Write the tensors of all processes to a list of rank ``dst``."""
    _root(dst, "dst")
    if gather_list is None:
        raise ValueError("rank 0 gives the list to gather in")
    all_gather(gather_list, tensor)


def scatter(tensor: Tensor, scatter_list: Sequence[Tensor] | None = None, src: int = 0) -> None:
    """Give each process its tensor of a list of rank ``src``."""
    _root(src, "src")
    if scatter_list is None or len(scatter_list) != 1:
        raise ValueError("rank 0 gives a list of one tensor to scatter")
    _checked(tensor).copy_(_checked(scatter_list[0]).detach())
