"""torch's memory formats: orders of dimensions in memory that programs ask for.

Tensors here lie row by row, or are views of tensors that do; engines choose their own orders inside. Asking for another
order changes no value, so it is allowed everywhere, and only `is_contiguous` tells one from the other.
"""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["MemoryFormat", "check_format", "order_of"]


class MemoryFormat(enum.Enum):
    """An order of dimensions in memory.

    Example:
        >>> import pyflame as pf
        >>> pf.zeros(1, 2, 3, 3).is_contiguous(memory_format=pf.channels_last)
        False
    """

    preserve_format = "preserve_format"
    contiguous_format = "contiguous_format"
    channels_last = "channels_last"
    channels_last_3d = "channels_last_3d"

    def __repr__(self) -> str:
        return f"torch.{self.value}"


def check_format(memory_format: Any) -> None:
    """Refuse what is no memory format; None stands for the default."""
    if memory_format is not None and not isinstance(memory_format, MemoryFormat):
        names = ", ".join(f"pf.{member.value}" for member in MemoryFormat)
        raise TypeError(f"memory_format must be one of {names}. Received: {memory_format!r}")


def order_of(memory_format: Any, rank: int) -> tuple[int, ...] | None:
    """Dimensions from the slowest to the quickest; None where tensors of the rank have no such format."""
    check_format(memory_format)
    if memory_format in (None, MemoryFormat.contiguous_format, MemoryFormat.preserve_format):
        return tuple(range(rank))
    wanted = 4 if memory_format is MemoryFormat.channels_last else 5
    return (0, *range(2, rank), 1) if rank == wanted else None
