"""Modules of torch as modules of ours: known layers one by one, what calls them through ``torch.fx``."""

from __future__ import annotations

import inspect
import operator
import sys
from typing import TYPE_CHECKING, Any

from pyflame.dtypes import to_dtype
from pyflame.interop import from_torch as tensor_from_torch
from pyflame.nn.module import Module
from pyflame.nn.parameter import Parameter
from pyflame_rt.graph.errors import UnsupportedOperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["TracedModule", "from_torch"]

_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
_STACKS = ("TransformerEncoder", "TransformerDecoder")
_LAYERS = ("TransformerEncoderLayer", "TransformerDecoderLayer")
# Parameters of torch's constructors that say nothing of what is computed here.
_ASIDE = frozenset(("device", "dtype", "size_average", "reduce", "inplace", "args", "kwargs"))


def from_torch(module: Any) -> Module:
    """The module of ours that computes what a module of torch does, with its weights copied.

    Layers of ``torch.nn`` become those of the same name. A module of your own is traced by ``torch.fx``; its layers,
    parameters and buffers keep their names, so ``state_dict`` has those of torch.

    Args:
        module: a ``torch.nn.Module``.

    Raises:
        TypeError: it is none.
        UnsupportedOperatorError: a layer or a function has no counterpart, the code depends on values, or a module has
            hooks.

    Example:
        >>> import pyflame as pf, torch
        >>> layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
        >>> pf.nn.from_torch(layers)(pf.ones([1, 3])).shape
        [1, 2]
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}")
    _refuse_hooks(module)
    made = _converted(torch, module)
    _fill(torch, made, module)
    return made


def _refuse_hooks(module: Any) -> None:
    """Hooks may change whatever passes through; `spectral_norm` and the older `weight_norm` are made of them."""
    for name, part in module.named_modules():
        for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
            if hooks := getattr(part, kind):
                held = next(iter(hooks.values()))
                raise UnsupportedOperatorError(
                    f"{name or 'the module'} ({type(part).__name__}) has {kind[1:].replace('_', ' ')} "
                    f"({getattr(held, '__name__', type(held).__name__)}): remove them, and register them on the result"
                )


def _converted(torch: Any, module: Any) -> Module:
    """A module without its weights."""
    from pyflame import nn

    name = type(module).__name__
    if type(module) is not getattr(torch.nn, name, None):
        return _traced(torch, module)
    ours = getattr(nn, name, None)
    if name in _CONTAINERS:
        return _container(torch, module, name)
    if name in _STACKS:
        layers = [_converted(torch, layer) for layer in module.layers]
        made = getattr(nn, name)(
            layers[0], len(layers), None if module.norm is None else _converted(torch, module.norm)
        )
        made.layers = nn.ModuleList(layers)
        return made
    if name == "Transformer":
        parts: dict[str, Any] = {
            f"num_{side}_layers": len(getattr(module, side).layers) for side in ("encoder", "decoder")
        }
        return nn.Transformer(**_layer_settings(module.encoder.layers[0]), **parts)
    if ours is None:
        raise UnsupportedOperatorError(f"torch.nn.{name} has no counterpart in pyflame.nn")
    settings = _layer_settings(module) if name in _LAYERS else _settings(type(module), ours, module)
    return ours(**settings)


def _container(torch: Any, module: Any, name: str) -> Module:
    from pyflame import nn

    made = getattr(nn, name)()
    for key, child in module._modules.items():
        made._modules[key] = None if child is None else _converted(torch, child)
    return made


def _settings(theirs: type, ours: type, module: Any) -> dict[str, Any]:
    """Arguments of our constructor, read off a module of theirs."""
    wanted, given = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    settings: dict[str, Any] = {}
    for name in dict.fromkeys([*given, *wanted]):  # recurrent layers of torch take any arguments
        if name in _ASIDE or not hasattr(module, name):
            continue
        value = getattr(module, name)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None
        if name in wanted:
            settings[name] = tensor_from_torch(value) if hasattr(value, "detach") else value
        elif value != given[name].default:
            raise UnsupportedOperatorError(f"torch.nn.{theirs.__name__} with {name}={value!r} has no counterpart")
    if theirs.__name__ == "MultiheadAttention":
        settings |= {"bias": module.in_proj_bias is not None, "add_bias_kv": module.bias_k is not None}
    if theirs.__name__ == "PReLU":
        settings.pop("init", None)
    return settings


def _layer_settings(layer: Any) -> dict[str, Any]:
    """Arguments of a layer of a transformer, which keeps its parts only."""
    act = layer.activation
    return {
        "d_model": layer.linear1.in_features,
        "nhead": layer.self_attn.num_heads,
        "dim_feedforward": layer.linear1.out_features,
        "dropout": layer.dropout.p,
        "activation": getattr(act, "__name__", type(act).__name__.lower()),
        "layer_norm_eps": layer.norm1.eps,
        "batch_first": layer.self_attn.batch_first,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
    }


# ---------------------------------------------------------------------- weights


def _fill(torch: Any, made: Module, module: Any) -> None:
    """Weights, modes and ties of a module of torch."""
    types = {t.dtype for t in [*module.parameters(), *module.buffers()] if t.is_floating_point()}
    if len(types) == 1 and (only := types.pop()) is not torch.float32:
        made.to(to_dtype(str(only).removeprefix("torch.")))
    made.load_state_dict({name: tensor_from_torch(value) for name, value in module.state_dict().items()})
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, last = _owner(made, name)
        if id(parameter) in first:
            other, key = _owner(made, first[id(parameter)])
            setattr(owner, last, getattr(other, key))
        first.setdefault(id(parameter), name)
        getattr(owner, last).requires_grad = parameter.requires_grad
    modes = {name: part.training for name, part in module.named_modules()}
    for name, part in made.named_modules():
        part.training = modes.get(name, part.training)


def _owner(module: Any, name: str) -> tuple[Any, str]:
    """The module that a dotted name's last part belongs to."""
    *path, last = name.split(".")
    for part in path:
        module = module._modules[part]
    return module, last


# ---------------------------------------------------------------------- modules of the user's own


class TracedModule(Module):
    """A module of torch whose code ``torch.fx`` traced: its calls one after the other, on our layers and tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[str, str, Callable[..., Any] | str | None, Any, Any]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the traced code computes."""
        values: dict[str, Any] = {}
        given, named = list(args), dict(kwargs)
        for kind, name, target, listed, keyed in self._calls:
            if kind == "placeholder":
                values[name] = self._argument(str(target), given, named, listed)
                continue
            inputs = [_held(a, values) for a in listed]
            options = {k: _held(v, values) for k, v in keyed.items()}
            if kind == "output":
                _refuse_more(given, named)
                return inputs[0]
            values[name] = self._called(kind, target, inputs, options)
        raise RuntimeError("a traced module has no output")

    @staticmethod
    def _argument(name: str, given: list[Any], named: dict[str, Any], default: Any) -> Any:
        if given:
            return given.pop(0)
        if name in named:
            return named.pop(name)
        if default:
            return default[0]
        raise TypeError(f"forward() misses the argument {name!r}")

    def _called(self, kind: str, target: Any, inputs: list[Any], options: dict[str, Any]) -> Any:
        if kind == "get_attr":
            owner, last = _owner(self, target)
            return getattr(owner, last)
        if kind == "call_module":
            owner, last = _owner(self, target)
            return owner._modules[last](*inputs, **options)
        if kind == "call_method":
            return getattr(inputs[0], target)(*inputs[1:], **options)
        return target(*inputs, **options)


def _refuse_more(given: list[Any], named: Mapping[str, Any]) -> None:
    if given or named:
        raise TypeError(
            f"forward() takes fewer arguments: {len(given)} and {', '.join(named) or 'none by name'} are left"
        )


class _Held:
    """The result of an earlier call."""

    def __init__(self, name: str) -> None:
        self.name = name


def _held(nest: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(nest, _Held):
        return values[nest.name]
    if isinstance(nest, (list, tuple)):
        return type(nest)(_held(item, values) for item in nest)
    if isinstance(nest, dict):
        return {key: _held(item, values) for key, item in nest.items()}
    if isinstance(nest, slice):
        return slice(*(_held(part, values) for part in (nest.start, nest.stop, nest.step)))
    return nest


def _traced(torch: Any, module: Any) -> TracedModule:
    try:
        graph = torch.fx.Tracer().trace(module)
    except (torch.fx.proxy.TraceError, TypeError, NotImplementedError) as error:
        raise UnsupportedOperatorError(
            f"{type(module).__name__} cannot be traced by torch.fx ({error}); pyflame_rt.from_torch(module, example) "
            "takes it by torch.export"
        ) from error
    made, state = TracedModule(), module.state_dict()
    for node in graph.nodes:
        target = node.target
        if node.op == "call_module":
            _place(made, target, _converted(torch, module.get_submodule(target)))
        elif node.op == "get_attr":
            _place(made, target, operator.attrgetter(target)(module), target in state)
        elif node.op == "call_function":
            target = _function(torch, target)
        elif node.op == "call_method":
            _check_method(target)
        made._calls.append((node.op, node.name, target, _plain(torch, node.args), _plain(torch, node.kwargs)))
    _place_rest(torch, made, module)
    return made


def _place(root: Module, path: str, part: Any, kept: bool = True) -> None:
    """Put a layer, parameter or buffer where it is in torch's module."""
    owner: Any = root
    *lead, last = path.split(".")
    for name in lead:
        if name not in owner._modules:
            setattr(owner, name, Module())
        owner = owner._modules[name]
    if isinstance(part, Module):
        if owner._modules.get(last) is None:
            setattr(owner, last, part)
    elif not hasattr(owner, last):
        tensor = tensor_from_torch(part).clone()
        if type(part).__name__ == "Parameter":
            owner.register_parameter(last, Parameter(tensor))
        else:
            owner.register_buffer(last, tensor, persistent=kept)


def _place_rest(torch: Any, made: Module, module: Any) -> None:
    """Weights that the traced code does not use are part of the state, too."""
    state = module.state_dict()
    for name, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
        owner = module.get_submodule(name.rpartition(".")[0])
        if type(owner) is getattr(torch.nn, type(owner).__name__, None) and not list(owner.children()):
            path = name.rpartition(".")[0]
            _place(made, path, _converted(torch, owner))
        else:
            _place(made, name, tensor, name in state)


def _function(torch: Any, target: Any) -> Callable[..., Any]:
    """Our function for one of torch's."""
    import pyflame
    from pyflame.nn import functional

    module, name = getattr(target, "__module__", "") or "", getattr(target, "__name__", str(target))
    if module in ("_operator", "builtins", "math") and not hasattr(torch, name):
        return target
    if module in ("_operator", "math") or target in (getattr, len):
        return target
    spaces = (functional, pyflame) if "functional" in module or module == "torch._C._nn" else (pyflame, functional)
    for space in spaces:
        if (found := getattr(space, name, None)) is not None:
            return found
    raise UnsupportedOperatorError(f"{module}.{name} has no counterpart in pyflame")


def _check_method(name: str) -> None:
    from pyflame.tensors import Tensor

    if not hasattr(Tensor, name):
        raise UnsupportedOperatorError(f"torch.Tensor.{name} has no counterpart in pyflame.Tensor")


def _plain(torch: Any, nest: Any) -> Any:
    """Arguments without anything of torch in them."""
    if isinstance(nest, torch.fx.Node):
        return _Held(nest.name)
    if isinstance(nest, (list, tuple)):
        return (
            type(nest)(_plain(torch, item) for item in nest)
            if type(nest) in (list, tuple)
            else tuple(_plain(torch, item) for item in nest)
        )
    if isinstance(nest, dict):
        return {key: _plain(torch, item) for key, item in nest.items()}
    if isinstance(nest, slice):
        return slice(*(_plain(torch, part) for part in (nest.start, nest.stop, nest.step)))
    if isinstance(nest, torch.dtype):
        return to_dtype(str(nest).removeprefix("torch."))
    if isinstance(nest, torch.device):
        return str(nest)
    return tensor_from_torch(nest) if isinstance(nest, torch.Tensor) else nest
