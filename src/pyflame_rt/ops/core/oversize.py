"""Size checks before evaluation: what an operator is about to make is compared with the memory budget."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import TensorType
from pyflame_rt.graph.budget import ALWAYS, check_memory, current_budget
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops.core.type_rules import boolean, broadcast, same

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["check_outputs", "check_types"]

_WIDEST = 16  # bytes of the widest element type


def check_outputs(op: Op, values: Sequence[Value | None], attributes: dict[str, Any]) -> None:
    """Refuse to evaluate or open an operator whose outputs the budget does not allow.

    Example:
        >>> from pyflame_rt.ops.core.evaluate import Node, evaluate
        >>> evaluate(Node("n", "Range", ["a", "b", "c"], ["y"]), [np.int64(0), np.int64(2**60), np.int64(1)])
        Traceback (most recent call last):
        pyflame_rt.graph.errors.MemoryLimitError: node 'n' (Range): an output of shape [1152921504606846976] needs ...
    """
    if op.infer is None or op.infer is same or op.infer is boolean:
        return
    sizes = [_elements(value) for value in values]
    if op.infer is broadcast and prod(max(n, 1) for n in sizes) * _WIDEST <= ALWAYS and not current_budget().limit:
        return  # each element comes from one of each input
    try:
        made = op.infer(*values, **attributes)
    except (PyFlameRTError, ValueError, IndexError, ArithmeticError, TypeError, AttributeError, KeyError):
        return  # the body says what is wrong with the inputs
    kinds = [getattr(m, "type", m) for m in (made if isinstance(made, tuple) else (made,))]
    check_types(kinds, sum(sizes) * 4)


def _elements(value: Value | None) -> int:
    """How many elements a value has, 0 where that is not known."""
    kind = None if value is None else value.type
    shape = kind.shape if isinstance(kind, TensorType) else None
    return 0 if shape is None else shape.num_elements or 0


def check_types(kinds: Iterable[Any], given: int) -> None:
    """Refuse types whose arrays together take more than the budget allows; ``given`` are bytes of the inputs."""
    total = 0
    for kind in kinds:
        count = kind.shape.num_elements if isinstance(kind, TensorType) and kind.shape is not None else None
        if count is None:
            continue
        total += count * kind.dtype.numpy.itemsize
        check_memory(f"an output of shape {kind.shape}", total, given)
