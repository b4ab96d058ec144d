"""A kernel that is an address of machine code, and how it is called."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from pyflame_rt.graph.records import dataclass

__all__ = ["NativeCall"]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """Machine code that computes an operator.

    Attributes:
        address: of the function.
        form: ``elements``: ``T f(T, ...)``, called for each element; ``buffers``: ``void f(void **inputs, void
            **outputs, int64_t *sizes)``, called once, ``sizes`` being rank and sizes of each input, then each output.
        dtypes: of ``elements``: labels of the arguments, then of the result.
        keep: what the code belongs to; it must not be freed while a plan may call it.
    """

    address: int
    form: Literal["elements", "buffers"]
    dtypes: tuple[str, ...] = ()
    keep: Any = field(default=None, compare=False, repr=False)
