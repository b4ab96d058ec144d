"""Memoised type inference: models repeat their layers, so equal nodes are inferred once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.ops.core.size_arithmetic import public_type
from pyflame_rt.ops.core.trace import infer_outputs
from pyflame_rt.ops.core.type_rules import boolean, broadcast, same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyflame_rt.ops.core.registry import Op
    from pyflame_rt.ops.core.value import Value

__all__ = ["InferenceMemo"]

# Rules that look at the types of inputs only, never at contents or attributes.
_TYPE_RULES = (same, broadcast, boolean)


class InferenceMemo:
    """Types of outputs by everything they can depend on."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Any, list[Value]] = {}

    def infer(self, op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> list[Value]:
        """Types of the outputs of an operator, as :func:`pyflame_rt.ops.core.trace.infer_outputs` gives them."""
        contents = op.shape_math and all(v is None or v.known is not None for v in values)
        if op.infer in _TYPE_RULES and not contents:
            key: Any = (op, *(None if v is None else v.type for v in values))
        else:
            key = _key(op, values, attributes)
        if key is None:
            return infer_outputs(op, values, dict(attributes))
        if key not in self._known:
            outputs = infer_outputs(op, values, dict(attributes))
            if any(_is_new(value) for value in outputs):
                return outputs
            self._known[key] = outputs
        return self._known[key]


def _is_new(value: Value) -> bool:
    """Whether a size is one that only the run will tell: two such nodes have two such sizes."""
    return value.type is not None and public_type(value.type) is not value.type


def _key(op: Op, values: Sequence[Value | None], attributes: Mapping[str, Any]) -> Any:
    """Everything the types of outputs can depend on; None where that is not easily compared."""
    parts: list[Any] = [op, "contents"]
    for value in values:
        if value is None or value.known is None:
            parts.append(None if value is None else value.type)
        elif value.known.dtype == object:
            return None
        else:
            parts += [value.type, value.known.tobytes()]
    for name, given in attributes.items():
        parts += [name, type(given), tuple(given) if isinstance(given, list) else given]
    try:
        hash(key := tuple(parts))
    except TypeError:  # graphs, arrays, lists of lists
        return None
    return key
