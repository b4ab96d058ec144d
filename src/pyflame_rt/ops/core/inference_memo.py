"""Memoised type inference: models repeat their layers, and a start infers each of them several times.

Loading, the passes and the specialiser each infer types. Those that they find are kept for the process, so the later
ones look up what the first one found, as do sessions of like models. Contents of values are arrays, which others may
change: they stay with the memo that found them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.budget import Budget, current_budget
from pyflame_rt.ops.core.registry import registrations
from pyflame_rt.ops.core.size_arithmetic import public_type
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.type_rules import boolean, broadcast, same
from pyflame_rt.ops.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from pyflame_rt.ops.core.registry import Op

__all__ = ["InferenceMemo"]

# Rules that look at the types of inputs only, never at contents or attributes.
_TYPE_RULES = (same, broadcast, boolean)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, DType})
_FEW = 16  # floats that may say a size, such as the scales of a Resize; more of them are data
_Found = dict[Any, "list[Value]"]
_MOST = 4096  # types that are kept for the process under one budget
_BUDGETS = 8  # of which they are kept
_types: dict[Budget, _Found] = {}
_taken_at = -1  # how often operators had been registered when the first of them was inferred


def _types_in_process() -> _Found:
    """Types this process found: a budget refuses large ones, and a registered operator may be part of others."""
    global _taken_at
    if registrations() != _taken_at or len(_types) > _BUDGETS:
        _types.clear()
        _taken_at = registrations()
    found = _types.get(current_budget(), {})
    if len(found) > _MOST or current_budget() not in _types:
        found = _types[current_budget()] = {}
    return found


class InferenceMemo:
    """Types of outputs by everything they can depend on.

    Args:
        alone: use nothing that others found, and leave them nothing: sizes of a trace note what they are compared with.
    """

    __slots__ = ("_known", "_types")

    def __init__(self, *, alone: bool = False) -> None:
        self._known: _Found = {}
        self._types = self._known if alone else _types_in_process()

    def infer(self, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Value]:
        """Types of the outputs of an operator, as :func:`pyflame_rt.ops.core.trace.infer_outputs` gives them."""
        if not op.shape_math:
            values = [Value(v.ref, v.type) if v is not None and _is_data(v.known) else v for v in values]
        contents = op.shape_math and all(v is None or v.known is not None for v in values)
        if op.infer in _TYPE_RULES and not contents:
            key: Any = (op, *[None if v is None else v.type for v in values])
        else:
            key = _key(op, values, attributes)
        found = None if key is None else self._types.get(key) or self._known.get(key)
        if found is not None:
            return found
        outputs = infer_outputs(op, values, dict(attributes))
        if key is not None and not any(_is_new(value) for value in outputs):
            kept = self._types if all(value.known is None for value in outputs) else self._known
            kept[key] = outputs
        return outputs


def _is_data(known: np.ndarray[Any, Any] | None) -> bool:
    """Whether contents are numbers that no type depends on: weights of one layer differ from those of the next."""
    return known is not None and known.size > _FEW and known.dtype.kind == "f"


def _is_new(value: Value) -> bool:
    """Whether a size is one that only the run will tell: two such nodes have two such sizes."""
    return value.type is not None and public_type(value.type) is not value.type


def _key(op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> Any:
    """Everything the types of outputs can depend on; None where that is not easily compared."""
    parts: list[Any] = [op, "contents", *attributes]
    for value in values:
        if value is None or value.known is None:
            parts.append(None if value is None else value.type)
        elif value.known.dtype == object:
            return None
        else:
            parts += [value.type, value.known.tobytes()]
    for given in attributes.values():
        if type(given) in _PLAIN:
            parts += (type(given), given)
        elif isinstance(given, (list, tuple)) and _PLAIN.issuperset(kinds := tuple(map(type, given))):
            parts += (kinds, tuple(given))
        else:  # graphs and tensors may change
            return None
    return tuple(parts)
