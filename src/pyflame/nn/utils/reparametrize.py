"""Weight and spectral normalisation by forward hooks, with the names of parameters that torch's older functions use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.autograd import no_grad
from pyflame.nn.functional.normalization import normalize
from pyflame.nn.parameter import Parameter
from pyflame.nn.utils.parametrizations import length
from pyflame.ops.linalg import mv
from pyflame.random import randn
from pyflame_rt.graph.named_arguments import names_arguments

if TYPE_CHECKING:
    from pyflame.nn.module import Module
    from pyflame.tensors import Tensor

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


class _Hook:
    """Sets a plain attribute before each forward pass."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle: Any = None

    def compute(self, module: Module) -> Tensor:
        """The weight of now."""
        raise NotImplementedError

    def __call__(self, module: Module, args: Any) -> None:
        del args
        self.put(module, self.compute(module))

    def put(self, module: Module, value: Any) -> None:
        """Make a tensor the attribute that `forward` reads."""
        object.__setattr__(module, self.name, value)

    def attach(self, module: Module) -> None:
        """Begin: compute once, then before each pass."""
        self.put(module, self.compute(module))
        self.handle = module.register_forward_pre_hook(self)
        _hooks(module).append(self)

    def detach(self, module: Module) -> None:
        """End: the weight is a parameter again."""
        with no_grad():
            value = self.compute(module).detach()
        self.handle.remove()
        _hooks(module).remove(self)
        module.__dict__.pop(self.name, None)
        for extra in self.extras():
            delattr(module, extra)
        module.register_parameter(self.name, Parameter(value))

    def extras(self) -> list[str]:
        """Parameters and buffers that it keeps in the module."""
        raise NotImplementedError


def _hooks(module: Module) -> list[_Hook]:
    return module.__dict__.setdefault("_weight_hooks", [])


def _found(module: Module, name: str, kind: type[_Hook]) -> _Hook:
    for hook in _hooks(module):
        if isinstance(hook, kind) and hook.name == name:
            return hook
    raise ValueError(f"{type(module).__name__} has no such normalisation of {name!r}")


class _WeightNormHook(_Hook):
    def __init__(self, module: Module, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = dim
        weight = module._parameters.pop(name)
        if weight is None:
            raise ValueError(f"{type(module).__name__} has no parameter {name!r}")
        module.register_parameter(f"{name}_g", Parameter(length(weight, dim).detach()))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))

    def compute(self, module: Module) -> Tensor:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / length(v, self.dim))

    def extras(self) -> list[str]:
        return [f"{self.name}_g", f"{self.name}_v"]


@names_arguments
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight as `<name>_g`, a length, and `<name>_v`, a direction; newer code uses `parametrizations`.

    Example:
        >>> import pyflame as pf
        >>> sorted(pf.nn.utils.weight_norm(pf.nn.Linear(3, 2)).state_dict())
        ['bias', 'weight_g', 'weight_v']
    """
    _WeightNormHook(module, name, dim).attach(module)
    return module


@names_arguments
def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight an ordinary parameter again."""
    _found(module, name, _WeightNormHook).detach(module)
    return module


class _SpectralNormHook(_Hook):
    def __init__(self, module: Module, name: str, times: int, eps: float, dim: int) -> None:
        super().__init__(name)
        if times <= 0:
            raise ValueError(f"spectral_norm: n_power_iterations is above 0, got {times}")
        self.times, self.eps, self.dim = times, eps, dim
        weight = module._parameters.pop(name)
        if weight is None:
            raise ValueError(f"{type(module).__name__} has no parameter {name!r}")
        matrix = self._matrix(weight)
        module.register_parameter(f"{name}_orig", Parameter(weight.detach(), weight.requires_grad))
        for part, size in (("u", matrix.shape[0]), ("v", matrix.shape[1])):
            start = normalize(randn(size, dtype=weight.dtype), dim=0, eps=eps)
            module.register_buffer(f"{name}_{part}", start.detach())

    def _matrix(self, weight: Any) -> Tensor:
        order = [self.dim, *[a for a in range(weight.ndim) if a != self.dim]]
        return weight.permute(*order).flatten(1) if weight.ndim > 1 else weight.unsqueeze(0)

    def compute(self, module: Module) -> Tensor:
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = self._matrix(weight)
        if module.training:
            with no_grad():
                a, b = u, v
                for _ in range(self.times):
                    b = normalize(mv(matrix.detach().t(), a), dim=0, eps=self.eps)
                    a = normalize(mv(matrix.detach(), b), dim=0, eps=self.eps)
                u.copy_(a)
                v.copy_(b)
        return weight / (u.clone() * mv(matrix, v.clone())).sum()

    def attach(self, module: Module) -> None:
        self.put(module, getattr(module, f"{self.name}_orig").detach())
        self.handle = module.register_forward_pre_hook(self)
        _hooks(module).append(self)

    def extras(self) -> list[str]:
        return [f"{self.name}_orig", f"{self.name}_u", f"{self.name}_v"]


@names_arguments
def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, which a power iteration follows in training mode.

    Example:
        >>> import pyflame as pf
        >>> sorted(pf.nn.utils.spectral_norm(pf.nn.Linear(3, 2)).state_dict())
        ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    _SpectralNormHook(module, name, n_power_iterations, eps, dim).attach(module)
    return module


@names_arguments
def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight, of unit norm, an ordinary parameter again."""
    _found(module, name, _SpectralNormHook).detach(module)
    return module
