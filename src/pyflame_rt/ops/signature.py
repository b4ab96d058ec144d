"""The signature of an operator's function is its schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyflame_rt.graph import Attribute
from pyflame_rt.graph.errors import InputError

__all__ = ["REQUIRED", "Input", "Signature", "read_signature"]

REQUIRED: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Input:
    """One formal input."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """Formal inputs in order, and attributes with their defaults (``REQUIRED`` where none)."""

    inputs: tuple[Input, ...]
    attributes: Mapping[str, Attribute]

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
        unknown = [name for name in given if name not in self.attributes]
        if unknown:
            raise InputError(f"{where}: unknown attribute {unknown[0]!r}. Attributes: {sorted(self.attributes)}")
        bound = {**self.attributes, **given}
        missing = [name for name, value in bound.items() if value is REQUIRED]
        if missing:
            raise InputError(f"{where}: attribute {missing[0]!r} is required")
        return bound

    def check_inputs(self, count: int, where: str) -> None:
        """Raise unless ``count`` inputs fit."""
        if count < self.min_inputs or (self.max_inputs is not None and count > self.max_inputs):
            most = "any number" if self.max_inputs is None else self.max_inputs
            raise InputError(f"{where}: takes {self.min_inputs} to {most} inputs, got {count}")


def read_signature(fn: Callable[..., Any], *, skip_first: bool) -> Signature:
    """Positional-only parameters are inputs, keyword-only ones attributes."""
    parameters = list(inspect.signature(fn).parameters.values())[int(skip_first) :]
    inputs, attributes = [], {}
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = p.default
        elif p.kind is p.VAR_POSITIONAL:
            inputs.append(Input(p.name, variadic=True))
        elif p.kind is p.VAR_KEYWORD:
            raise TypeError(f"{fn.__name__}: attributes must be named, not **{p.name}")
        else:
            inputs.append(Input(p.name, optional=p.default is not p.empty))
    return Signature(tuple(inputs), attributes)
