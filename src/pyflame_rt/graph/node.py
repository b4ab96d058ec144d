"""Node: one operator applied to named values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Attribute", "Node"]

# int, float, str, bytes, Tensor, Graph, a ValueType, or a list of one of these.
Attribute: TypeAlias = Any


def _refused(name: object, inputs: object, outputs: object, attributes: object) -> TypeError:
    """What is said of arguments of a node that are none."""
    for what, value in (("inputs", inputs), ("outputs", outputs)):
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            shown = repr(value) if isinstance(value, str) else type(value).__name__
            return TypeError(f"the {what} of node {name!r} must be a list of names, got {shown}")
    return TypeError(f"the attributes of node {name!r} must be a dict, got {type(attributes).__name__}")


class Node:
    """An operator, its inputs and outputs by name, and its attributes.

    An empty input name is an optional input that is not given. Inputs, outputs and operator
    never change; ``set_attr`` exists for building a graph by hand, and a copy of a graph has
    nodes of its own. ``full_name`` is the operator with its domain, such as ``com.microsoft::Gelu``.

    Example:
        >>> node = Node("relu1", "LeakyRelu", ["x"], ["y"], {"alpha": 0.1})
        >>> node.get_attr("alpha"), node.get_attr("beta", 2.0)
        (0.1, 2.0)
    """

    __slots__ = ("_attributes", "domain", "full_name", "inputs", "name", "op_type", "outputs")

    def __init__(
        self,
        name: str,
        op_type: str,
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
        attributes: Mapping[str, Attribute] | None = None,
        domain: str = "",
    ) -> None:
        self.name = name
        self.op_type = op_type
        try:
            self.inputs = tuple(inputs)
            self.outputs = tuple(outputs)
            self._attributes: dict[str, Attribute] = {} if attributes is None else dict(attributes)
        except (TypeError, ValueError):
            raise _refused(name, inputs, outputs, attributes) from None
        if inputs.__class__ is str or outputs.__class__ is str:  # a text is a list of letters
            raise _refused(name, inputs, outputs, attributes)
        self.domain = "" if domain == "ai.onnx" else domain
        self.full_name = f"{self.domain}::{op_type}" if self.domain else op_type
        self._attributes: dict[str, Attribute] = {} if attributes is None else dict(attributes)

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """Attributes that were given; defaults belong to the operator."""
        return self._attributes

    def set_attr(self, name: str, value: Attribute) -> None:
        """Set one attribute."""
        self._attributes = {**self._attributes, name: value}

    def get_attr(self, name: str, default: Attribute = None) -> Attribute:
        """One attribute, or ``default``."""
        return self._attributes.get(name, default)

    def has_attr(self, name: str) -> bool:
        """True when the attribute was given."""
        return name in self._attributes

    set_attribute = set_attr
    get_attribute = get_attr
    has_attribute = has_attr

    @property
    def attribute_names(self) -> list[str]:
        """Names of the attributes that were given."""
        return list(self._attributes)

    def replace(
        self,
        *,
        name: str | None = None,
        op_type: str | None = None,
        inputs: Iterable[str] | None = None,
        outputs: Iterable[str] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        domain: str | None = None,
    ) -> Node:
        """A new node that differs in the given fields."""
        return Node(
            self.name if name is None else name,
            self.op_type if op_type is None else op_type,
            self.inputs if inputs is None else inputs,
            self.outputs if outputs is None else outputs,
            self._attributes if attributes is None else attributes,
            self.domain if domain is None else domain,
        )

    def clone(self) -> Node:
        """An equal node; attribute values are shared until one of the two is set."""
        twin = Node.__new__(Node)
        twin.name, twin.op_type, twin.domain, twin.full_name = self.name, self.op_type, self.domain, self.full_name
        twin.inputs, twin.outputs, twin._attributes = self.inputs, self.outputs, self._attributes
        return twin

    def __repr__(self) -> str:
        return f"{self.name or '?'}: {self.full_name}({', '.join(self.inputs)}) -> {', '.join(self.outputs)}"
