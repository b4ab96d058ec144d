"""Parametrizations: a parameter that is computed from others each time it is read, as in torch."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.nn.containers import ModuleDict, ModuleList
from pyflame.nn.parameter import Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame.nn.module import Module
    from pyflame.tensors import Tensor

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations"]

_caches: list[dict[int, Any]] = []


class ParametrizationList(ModuleList):
    """The functions that make a tensor, and the parameters it is made from: `original`, or `original0`, ..."""

    def __init__(self, modules: list[Module], original: Any) -> None:
        super().__init__(modules)
        made: Any = original.detach()
        for module in reversed(modules):
            if hasattr(module, "right_inverse"):
                made = module.right_inverse(made)
        self.ntensors = 1 if not isinstance(made, tuple | list) else len(made)
        self.is_tensor = not isinstance(made, tuple | list)
        parts: list[Any] = [("original", made)] if self.is_tensor else [(f"original{i}", t) for i, t in enumerate(made)]
        for name, tensor in parts:
            if isinstance(original, Parameter):
                self.register_parameter(name, Parameter(tensor.detach(), original.requires_grad))
            else:
                self.register_buffer(name, tensor.detach())

    def forward(self) -> Tensor:
        """The tensor."""
        if _caches and id(self) in _caches[-1]:
            return _caches[-1][id(self)]
        parts = ["original"] if self.is_tensor else [f"original{i}" for i in range(self.ntensors)]
        modules = list(self)
        made: Any = modules[0](*[getattr(self, name) for name in parts])
        for module in modules[1:]:
            made = module(made)
        if _caches:
            _caches[-1][id(self)] = made
        return made


@contextmanager
def cached() -> Iterator[None]:
    """While it lasts, each parametrized tensor is made once.

    Example:
        >>> import pyflame as pf
        >>> with pf.nn.utils.parametrize.cached():
        ...     pass
    """
    _caches.append({})
    try:
        yield
    finally:
        _caches.pop()


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrizations, or one of this name."""
    tables = module._modules.get("parametrizations")
    if tables is None:
        return False
    return len(list(tables.children())) > 0 if tensor_name is None else tensor_name in tables._modules


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let a parameter or buffer be made by a module from what it is now.

    Args:
        module: whose tensor it is.
        tensor_name: its name.
        parametrization: makes the tensor; its `right_inverse`, if it has one, says what it is made from at first.
        unsafe: leave out the check that the shape and element type stay.

    Example:
        >>> import pyflame as pf
        >>> class Symmetric(pf.nn.Module):
        ...     def forward(self, x):
        ...         return x.triu() + x.triu(1).T
        >>> layer = pf.nn.Linear(3, 3)
        >>> _ = pf.nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
        >>> bool((layer.weight == layer.weight.T).all())
        True
    """
    tables = module._modules.get("parametrizations")
    if is_parametrized(module, tensor_name):
        assert tables is not None
        found: Any = tables._modules[tensor_name]
        found.append(parametrization)
        return module
    original = module._parameters.get(tensor_name)
    original = module._buffers.get(tensor_name) if original is None else original
    if original is None:
        raise ValueError(f"{type(module).__name__} has no parameter, parametrized tensor or buffer {tensor_name!r}")
    made = ParametrizationList([parametrization], original)
    if not unsafe:
        with no_grad():
            result = made()
        if tuple(result.shape) != tuple(original.shape) or result.dtype is not original.dtype:
            raise ValueError(
                f"the parametrization of {tensor_name!r} makes {result.dtype.name} {result.shape} of "
                f"{original.dtype.name} {original.shape}; pass unsafe=True if that is meant"
            )
    if tables is None:
        module.add_module("parametrizations", ModuleDict())
        tables = module._modules["parametrizations"]
    module._forget(tensor_name)
    assert tables is not None
    tables.add_module(tensor_name, made)
    return module


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a tensor an ordinary one again: with the value it has, or with what it was made from."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    tables: Any = module._modules["parametrizations"]
    found = tables._modules.pop(tensor_name)
    if not leave_parametrized and not found.is_tensor:
        raise ValueError("what several tensors made cannot be one of them; leave_parametrized must be True")
    with no_grad():
        value = found() if leave_parametrized else found.original
    if not tables._modules:
        del module.parametrizations
    if found._parameters:
        setattr(module, tensor_name, Parameter(value.detach()))
    else:
        module.register_buffer(tensor_name, value.detach())
    return module
