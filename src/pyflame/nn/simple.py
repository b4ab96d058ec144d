"""Layers without parameters, written once from their functions: activations, pooling, dropout, reshaping."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyflame.nn.functional.activation import in_place
from pyflame.nn.module import Module

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FunctionLayer"]


class FunctionLayer(Module):
    """A function of a tensor as a layer: a subclass names the function, and its settings are the constructor's.

    The constructor takes every parameter of the function but the first (and `inplace`, which is honoured by binding
    the input's handle to the result).
    """

    function: Callable[..., Any]
    settings: tuple[str, ...] = ()
    positional: tuple[inspect.Parameter, ...] = ()
    takes_inplace = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        function = cls.__dict__.get("function")
        if function is None:
            return
        cls.function = staticmethod(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        cls.positional = tuple(p for p in parameters if p.name not in ("training", "inplace"))
        cls.settings = tuple(p.name for p in cls.positional)
        inplace = inspect.Parameter("inplace", inspect.Parameter.KEYWORD_ONLY, default=False)
        cls.__signature__ = inspect.Signature([*cls.positional, inplace])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        inplace = bool(kwargs.pop("inplace", False))
        if len(args) == len(self.positional) + 1 and isinstance(args[-1], bool):
            args, inplace = args[:-1], args[-1]  # torch's last positional argument
        bound = inspect.Signature(self.positional).bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            setattr(self, name, value)
        self.inplace = inplace

    def call(self, input: Any, **more: Any) -> Any:
        """The function with this layer's settings."""
        if not self.settings and not more:
            return type(self).function(input)
        return type(self).function(input, **{name: getattr(self, name) for name in self.settings}, **more)

    def forward(self, input: Any) -> Any:
        """The function's value."""
        return in_place(self.call, input) if self.inplace else self.call(input)

    def extra_repr(self) -> str:
        """The settings."""
        parts = [f"{name}={value!r}" for name in self.settings if (value := getattr(self, name)) is not None]
        return ", ".join([*parts, "inplace=True"] if self.inplace else parts)
