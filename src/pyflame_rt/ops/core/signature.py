"""The signature of an operator's function is its schema."""

from __future__ import annotations

import inspect
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.graph import Attribute

__all__ = ["REQUIRED", "Input", "Signature", "read_signature"]

REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Input:
    """One formal input.

    ``optional`` ones may be missing at the end; ``nullable`` ones, declared ``Value | None``, may also be
    left out in the middle, with an empty name.
    """

    name: str
    optional: bool = False
    variadic: bool = False
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Formal inputs in order, and attributes with their defaults (``REQUIRED`` where none).

    ``kinds`` has the annotation of each attribute, such as ``list[int] | None``.
    """

    inputs: tuple[Input, ...]
    attributes: Mapping[str, Attribute]
    kinds: Mapping[str, str] = field(default_factory=dict)
    _fitting: set[int] = field(default_factory=set, repr=False, compare=False)  # counts of inputs that were looked at
    _required: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        required = tuple(name for name, value in self.attributes.items() if value is REQUIRED)
        object.__setattr__(self, "_required", required)

    @property
    def min_inputs(self) -> int:
        """How many inputs must be given."""
        return sum(not (i.optional or i.variadic) for i in self.inputs)

    @property
    def max_inputs(self) -> int | None:
        """How many may be given; None without limit."""
        return None if any(i.variadic for i in self.inputs) else len(self.inputs)

    def bind(self, given: Mapping[str, Attribute], where: str) -> dict[str, Attribute]:
        """Attributes with defaults filled in; unknown or missing ones are errors."""
        if not given.keys() <= self.attributes.keys():
            unknown = [name for name in given if name not in self.attributes]
            raise InputError(f"{where}: unknown attribute {unknown[0]!r}. Attributes: {sorted(self.attributes)}")
        bound = {**self.attributes, **given}
        for name in self._required:
            if bound[name] is REQUIRED:
                raise InputError(f"{where}: attribute {name!r} is required")
        return bound

    def check_kinds(self, given: Mapping[str, Attribute], where: str) -> None:
        """Raise unless every attribute of a node is of its declared kind."""
        for name, value in given.items():
            kind = self.kinds.get(name, "Any")
            plain, elements = _types_of(kind)
            if type(value) in plain or (elements and type(value) is list and elements.issuperset(map(type, value))):
                continue
            if not any(_CHECKS.get(part, _anything)(value) for part in kind.split(" | ")):
                raise InputError(f"{where}: attribute {name!r} must be {kind}, got {str(value)[:60]!r}")

    def check_given(self, names: Sequence[str], where: str) -> None:
        """Raise unless a node reads as many values as there are inputs, and names the required ones."""
        if "" not in names and len(names) in self._fitting:
            return
        count = max((i + 1 for i, name in enumerate(names) if name), default=0)
        self.check_inputs(count, where)
        for formal, name in zip(self.inputs, names, strict=False):
            if not (name or formal.optional or formal.variadic or formal.nullable):
                raise InputError(f"{where}: input {formal.name!r} is required")
        if self.inputs and self.inputs[-1].variadic and "" in names[len(self.inputs) - 1 : count]:
            raise InputError(f"{where}: one of the inputs {self.inputs[-1].name!r} is left out, all are required")

    def check_inputs(self, count: int, where: str) -> None:
        """Raise unless ``count`` inputs fit."""
        if count in self._fitting:
            return
        if count < self.min_inputs or (self.max_inputs is not None and count > self.max_inputs):
            most = "any number" if self.max_inputs is None else self.max_inputs
            raise InputError(f"{where}: takes {self.min_inputs} to {most} inputs, got {count}")
        self._fitting.add(count)


def _anything(value: Attribute) -> bool:
    return True


def _all(*kinds: type) -> Callable[[Attribute], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kinds) for item in value)


_CHECKS: dict[str, Callable[[Attribute], bool]] = {
    "None": lambda value: value is None,
    "int": lambda value: isinstance(value, int),
    "bool": lambda value: isinstance(value, int),
    "float": lambda value: isinstance(value, (int, float)),
    "str": lambda value: isinstance(value, str),
    "Tensor": lambda value: isinstance(value, Tensor),
    "Graph": lambda value: isinstance(value, Graph),
    "list[int]": _all(int),
    "list[float]": _all(int, float),
    "list[str]": _all(str),
}


@cache
def _types_of(kind: str) -> tuple[frozenset[type], frozenset[type]]:
    """Exact types that a value of a kind may have, and of the elements of a list; what has others is looked at."""
    plain: set[type] = set()
    elements: set[type] = set()
    for part in kind.split(" | "):
        inner = part.removeprefix("list[").removesuffix("]")
        (plain if inner == part else elements).update(_TYPES.get(inner, ()))
    return frozenset(plain), frozenset(elements)


_TYPES: dict[str, tuple[type, ...]] = {
    "None": (type(None),),
    "int": (int, bool),
    "bool": (int, bool),
    "float": (float, int, bool),
    "str": (str,),
    "Tensor": (Tensor,),
    "Graph": (Graph,),
}


def read_signature(fn: Callable[..., Any], *, skip_first: bool) -> Signature:
    """Positional-only parameters are inputs, keyword-only ones attributes."""
    parameters = list(inspect.signature(fn).parameters.values())[int(skip_first) :]
    inputs, attributes, kinds = [], {}, {}
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = p.default
            kinds[p.name] = str(p.annotation)
        elif p.kind is p.VAR_POSITIONAL:
            inputs.append(Input(p.name, variadic=True))
        elif p.kind is p.VAR_KEYWORD:
            raise TypeError(f"{fn.__name__}: attributes must be named, not **{p.name}")
        else:
            nullable = "None" in str(p.annotation).split(" | ")
            inputs.append(Input(p.name, optional=p.default is not p.empty, nullable=nullable))
    return Signature(tuple(inputs), attributes, kinds)
