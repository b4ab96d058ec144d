"""Which primitives the wafer has: scalar functions, folds, and those with a lowering of their own."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from pyflame_rt.backends.wse.emit.scalar_csl import function_of
from pyflame_rt.backends.wse.plan.indexing import INDEXED
from pyflame_rt.backends.wse.plan.views import VIEWS
from pyflame_rt.backends.wse.plan.window_patches import WINDOWED
from pyflame_rt.ops.core.registry import all_ops, find_op
from pyflame_rt.ops.onnx.arithmetic import SumTo
from pyflame_rt.ops.onnx.matmul import MatMul
from pyflame_rt.ops.onnx.shape import Expand
from pyflame_rt.ops.onnx.slicing import Split

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KNOWN", "OPENED", "fold_of"]

OPENED = {**WINDOWED, **INDEXED}
_OTHERS = frozenset({*VIEWS, *OPENED, Expand.name, MatMul.name, Split.name, SumTo.full_name}) - {"Indices", "Windows"}


def fold_of(name: str) -> str:
    """The fold that a primitive reduction is, by its name; empty for other operators.

    >>> fold_of("ReduceMean"), fold_of("Add")
    ('mean', '')
    """
    op = find_op(name)
    return "" if op is None else op.fold


class _Known(Set[str]):
    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in _OTHERS or bool(function_of(name) or fold_of(name)))

    def __iter__(self) -> Iterator[str]:
        return (op.full_name for op in all_ops() if op.full_name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


KNOWN: Set[str] = _Known()
"""Full names of the primitives that have a rule."""
