"""Expressions of elementwise operators before they are kernels: trees over values of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pyflame_rt.backends.wse.plan.kernels import App, Lit, Ref
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from pyflame_rt.backends.wse.plan.kernels import Expr

__all__ = ["Tree", "Use", "indexed", "measure"]


@dataclass(frozen=True, slots=True)
class Use:
    """A value inside an expression that is not a kernel yet."""

    value: str
    dtype: str


Tree: TypeAlias = "Use | Lit | App"


def measure(tree: Tree) -> tuple[dict[str, None], int]:
    """The values an expression reads, and its number of operators."""
    if isinstance(tree, Use):
        return {tree.value: None}, 0
    if isinstance(tree, Lit):
        return {}, 0
    used: dict[str, None] = {}
    size = 1
    for arg in tree.args:
        inner, count = measure(arg)  # type: ignore[arg-type]
        used |= inner
        size += count
    return used, size


def indexed(tree: Tree, index: dict[str, int]) -> Expr:
    """The expression with operands by number."""
    if isinstance(tree, Use):
        return Ref(index[tree.value], tree.dtype)
    if isinstance(tree, Lit):
        return tree
    return App(tree.function, tuple(indexed(a, index) for a in tree.args), tree.dtype, tree.attributes)  # type: ignore[arg-type]
