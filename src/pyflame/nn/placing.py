"""``layout=``, ``device=`` and ``dtype=`` on every layer with parameters: a decorator of the classes."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from pyflame.devices import Device
from pyflame.dtypes import to_dtype
from pyflame.nn.module import Module

if TYPE_CHECKING:
    from pyflame.layout import MeshLayout

__all__ = ["place", "placed"]

Layer = TypeVar("Layer", bound=type[Module])
WHERE = ("layout", "device", "dtype")


def place(module: Module, layout: MeshLayout | None = None, device: Any = None, dtype: Any = None) -> None:
    """Put a new module's weights on the mesh, and its parameters and buffers into an element type.

    Args:
        module: with its parameters made.
        layout: of all parameters but biases, which go with the results.
        device: "cpu"; others are refused.
        dtype: a floating-point type.
    """
    if device is not None:
        Device.of(device)
    if dtype is not None:
        module._convert(to_dtype(dtype))
    if layout is not None:
        for name, parameter in module.named_parameters():
            if "bias" not in name.rpartition(".")[2]:
                parameter.data = parameter.detach().to_layout(layout)


def placed(cls: Layer) -> Layer:
    """Let the constructor of a layer take those of ``layout=``, ``device=``, ``dtype=`` that it does not declare."""
    make = cls.__init__
    signature = inspect.signature(make)
    absent = tuple(name for name in WHERE if name not in signature.parameters)

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        mine = {name: kwargs.pop(name) for name in absent if name in kwargs}
        make(self, *args, **kwargs)
        if mine:
            place(self, **mine)

    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in absent]
    parameters = list(signature.parameters.values())
    end = len(parameters) - (bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    __init__.__signature__ = signature.replace(parameters=[*parameters[:end], *added, *parameters[end:]])  # type: ignore[attr-defined]
    cls.__init__ = __init__
    return cls
