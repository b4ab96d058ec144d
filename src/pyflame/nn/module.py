"""The base of every layer and model: parameters, buffers and children by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from pyflame.arrays import adopt
from pyflame.devices import Device
from pyflame.dtypes import DType, to_dtype
from pyflame.lazy import mode_changes, modes, unusual
from pyflame.memory_formats import check_format
from pyflame.nn.hooks import HookTable, RemovableHandle
from pyflame.nn.locating import OURS, locate
from pyflame.nn.parameter import Parameter
from pyflame.suggestions import missing
from pyflame.tensors import Tensor
from pyflame_rt.graph.named_arguments import NamedArguments, explained
from pyflame_rt.graph.tensor import whole

__all__ = ["IncompatibleKeys", "Module"]


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` did not find, and what it found no place for."""

    missing_keys: list[str]
    unexpected_keys: list[str]


_TABLES = ("_parameters", "_buffers", "_modules")
_NOWHERE: dict[str, Any] = {}


class Module(NamedArguments):
    """A layer or model: assign parameters and other modules to attributes, write `forward`, call it.

    Example:
        >>> import pyflame as pf
        >>> class Net(pf.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = pf.nn.Linear(4, 2)
        ...     def forward(self, x):
        ...         return pf.relu(self.fc(x))
        >>> net = Net()
        >>> net(pf.ones([3, 4])).shape
        [3, 2]
        >>> [name for name, _ in net.named_parameters()]
        ['fc.weight', 'fc.bias']
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        for name, value in (
            ("training", True),
            ("_parameters", {}),
            ("_buffers", {}),
            ("_modules", {}),
            ("_transient", set()),
            ("_hooks", HookTable()),
        ):
            object.__setattr__(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every module writes its own."""
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` gives, between the hooks."""
        hooks = self.__dict__.get("_hooks")
        if hooks is None:
            raise AttributeError(f"{type(self).__name__}.__init__ must call super().__init__() first")
        if unusual and modes.tracer is not None:
            modes.tracer.note_mode(self)
        try:
            if unusual and modes.spans is not None:
                run = (lambda: hooks.run(self, args, kwargs)) if hooks else (lambda: self.forward(*args, **kwargs))
                return modes.spans.call(self, run)
            return hooks.run(self, args, kwargs) if hooks else self.forward(*args, **kwargs)
        except (*OURS, AttributeError) as error:
            better = explained(self.forward, args, kwargs, error) if self.__module__.startswith("pyflame.") else None
            if better is not None:
                raise better from error
            if isinstance(error, OURS):
                locate(error, self, args)
            raise

    def __runtime_graph__(self, arguments: tuple[Any, ...]) -> Any:
        """The module in evaluation mode as a graph of `pyflame_rt`, for arguments like these."""
        from pyflame.exporting import evaluation_graph

        return evaluation_graph(self, arguments)

    # Attributes.

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__
        if "_parameters" not in state:
            if isinstance(value, Parameter | Module):
                raise AttributeError(f"cannot assign {name!r} before Module.__init__() call")
            object.__setattr__(self, name, value)
            return
        if isinstance(value, Parameter):
            self._forget(name)
            self._parameters[name] = value
            mode_changes[0] += 1
        elif isinstance(value, Module):
            self._forget(name)
            self._modules[name] = value
            mode_changes[0] += 1
        elif name in self._parameters:
            if value is not None:
                raise TypeError(
                    f"cannot assign {type(value).__name__} as parameter {name!r} (nn.Parameter or None expected)"
                )
            self._parameters[name] = None
            mode_changes[0] += 1
        elif name in self._modules:
            if value is not None:
                raise TypeError(
                    f"cannot assign {type(value).__name__} as child module {name!r} (Module or None expected)"
                )
            self._modules[name] = None
            mode_changes[0] += 1
        elif name in self._buffers:
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"cannot assign {type(value).__name__} as buffer {name!r} (Tensor or None expected)")
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)
            if name == "training":
                mode_changes[0] += 1

    def __getattr__(self, name: str) -> Any:
        # Only reached when the usual look-up found nothing.
        state = self.__dict__
        for table in _TABLES:
            found = state.get(table, _NOWHERE)
            if name in found:
                return found[name]
        made = state.get("_modules", {}).get("parametrizations")
        if made is not None and name in made._modules:
            return made._modules[name]()
        if name.startswith("__") or "_modules" not in state:  # asked for by protocols, or before __init__ ran
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name)
        raise missing(type(self).__name__, name, self.__dir__())

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._transient.discard(name)
                mode_changes[0] += 1
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name: str) -> bool:
        """Take a name out of every table; whether it was in one."""
        self.__dict__.pop(name, None)
        self._transient.discard(name)
        mode_changes[0] += 1
        return any(table.pop(name, table) is not table for table in (self._parameters, self._buffers, self._modules))

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or a place for one."""
        self._check_name(name, "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"cannot register {type(param).__name__} as parameter {name!r} (nn.Parameter or None expected)"
            )
        self._parameters[name] = param
        mode_changes[0] += 1

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is state but not trained; `persistent=False` keeps it out of `state_dict`."""
        self._check_name(name, "buffer")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"cannot register {type(tensor).__name__} as buffer {name!r} (Tensor or None expected)")
        self._buffers[name] = tensor
        if not persistent:
            self._transient.add(name)

    def register_module(self, name: str, module: Module | None) -> Module | None:
        """Add a child under a name, and return it."""
        self._check_name(name, "module")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{type(module).__name__} is not a Module")
        self._modules[name] = module
        mode_changes[0] += 1
        return module

    add_module = register_module

    def _check_name(self, name: str, kind: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Received: {type(name).__name__}")
        if not name or "." in name:
            raise KeyError(f"{kind} name must not be empty or contain '.'. Received: {name!r}")
        if hasattr(self, name) and not any(name in t for t in (self._parameters, self._buffers, self._modules)):
            raise KeyError(f"attribute {name!r} already exists")

    # Walking the tree.

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, with dotted names, each once."""
        seen = set() if memo is None else memo
        if self in seen:
            return
        if remove_duplicate:
            seen.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(seen, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names, each once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules directly below, each once."""
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with dotted names; one that is shared comes once."""
        yield from self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with dotted names."""
        yield from self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        owners = self.named_modules(prefix=prefix, remove_duplicate=once) if recurse else [(prefix, self)]
        for path, module in owners:
            for name, member in getattr(module, table).items():
                if member is None or id(member) in seen:
                    continue
                if once:
                    seen.add(id(member))
                yield (f"{path}.{name}" if path else name), member

    def get_submodule(self, target: str) -> Module:
        """The module with this dotted name."""
        module: Module = self
        for part in target.split(".") if target else ():
            found = module._modules.get(part)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no module {part!r} (looking for {target!r})")
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with this dotted name."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with this dotted name."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call a function with every module below, then with this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # Modes.

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below."""
        if not isinstance(mode, bool):
            raise ValueError(f"training mode is expected to be boolean. Received: {mode!r}")
        for module in self.modules():
            object.__setattr__(module, "training", mode)
        mode_changes[0] += 1
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below."""
        return self.train(False)

    def is_training(self) -> bool:
        """Whether the module is in training mode."""
        return self.training

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let gradients flow to all parameters, or stop them."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, or set them to zero."""
        for parameter in self.parameters():
            parameter.zero_grad(set_to_none=set_to_none)

    # Dtypes.

    def to(
        self,
        *targets: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = None,
    ) -> Self:
        """Convert floating parameters and buffers to an element type, or to that of a tensor; "cpu" changes nothing.

        Nothing is ever waited for, and memory formats change no value.
        """
        del non_blocking
        check_format(memory_format)
        for target in (*targets, device, dtype):
            kind = target.dtype if isinstance(target, Tensor) else target
            if kind is None or isinstance(kind, bool):
                continue
            try:
                self._convert(to_dtype(kind))
            except TypeError:
                Device.of(kind)
        return self

    def _convert(self, dtype: DType) -> None:
        if not dtype.is_floating_point:
            raise ValueError(f"modules are converted to floating-point types. Received: {dtype.name}")
        for tensor in [*self.parameters(), *self.buffers()]:
            if tensor.dtype.is_floating_point and tensor.dtype is not dtype:
                tensor.data = tensor.detach().to(dtype)

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers to an element type, those of whole numbers too.

        Example:
            >>> import pyflame as pf
            >>> layer = pf.nn.BatchNorm1d(2).type(pf.float64)
            >>> layer.weight.dtype, layer.num_batches_tracked.dtype
            (DType.float64, DType.float64)
        """
        dtype = to_dtype(dst_type)
        tensors = [*self.parameters(), *self.buffers()]
        if not dtype.is_floating_point and any(t.requires_grad for t in tensors):
            raise RuntimeError(f"parameters that require gradients must be floating point. Received: {dtype.name}")
        for tensor in tensors:
            if tensor.dtype is not dtype:
                tensor.data = tensor.detach().to(dtype)
        return self

    def cpu(self) -> Self:
        """As it is: this is where modules are."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """Refuse: there is no such device."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def float(self) -> Self:
        """Floating parameters and buffers as float32."""
        return self.to(DType.float32)

    def double(self) -> Self:
        """Floating parameters and buffers as float64."""
        return self.to(DType.float64)

    def half(self) -> Self:
        """Floating parameters and buffers as float16."""
        return self.to(DType.float16)

    def bfloat16(self) -> Self:
        """Floating parameters and buffers as bfloat16."""
        return self.to(DType.bfloat16)

    # State.

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> OrderedDict[str, Tensor]:
        """Parameters and persistent buffers by dotted name, as torch names them.

        The values are those of now; changing one in place (`copy_`, `mul_`, ...) changes the module.
        """
        state: OrderedDict[str, Tensor] = OrderedDict()
        for path, module in self.named_modules(remove_duplicate=False):
            lead = f"{prefix}{path}." if path else prefix
            for name, member in module._members():
                state[lead + name] = member if keep_vars else member.data
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values in by name: tensors of this framework or torch's, or arrays.

        Args:
            state_dict: Values by dotted name.
            strict: Refuse missing and unexpected names; else they are only returned.
            assign: Take over the dtype of the values; else they are converted to the dtype that is here.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like. Received: {type(state_dict).__name__}")
        for path, module in list(self.named_modules()):
            if type(module)._sees_state is not Module._sees_state:
                start = f"{path}." if path else ""
                own = {n.removeprefix(start): v for n, v in state_dict.items() if n.startswith(start)}
                module._sees_state({name: tuple(value.shape) for name, value in own.items()})
        mine = {
            (f"{path}.{name}" if path else name): member
            for path, module in self.named_modules(remove_duplicate=False)
            for name, member in module._members()
        }
        missing = [name for name in mine if name not in state_dict]
        unexpected = [name for name in state_dict if name not in mine]
        arrays = {name: to_array(state_dict[name]) for name in mine if name in state_dict}
        problems = [
            f"size mismatch for {name}: copying a param with shape {list(array.shape)} from checkpoint, "
            f"the shape in current model is {list(mine[name].shape)}."
            for name, array in arrays.items()
            if list(array.shape) != list(mine[name].shape)
        ]
        if strict:
            problems += [f"Unexpected key(s) in state_dict: {', '.join(map(repr, unexpected))}."] if unexpected else []
            problems += [f"Missing key(s) in state_dict: {', '.join(map(repr, missing))}."] if missing else []
        if problems:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(problems))
        for name, array in arrays.items():
            value = adopt(np.array(array))
            if assign:
                mine[name].data = value
            else:
                mine[name]._renew(value.to(mine[name].dtype))
        return IncompatibleKeys(missing, unexpected)

    def _sees_state(self, state: Mapping[str, tuple[int, ...]]) -> None:
        """Values of these shapes are going to be loaded; layers that wait for a size find it here."""

    def _members(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._parameters.items():
            if parameter is not None:
                yield name, parameter
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._transient:
                yield name, buffer

    # Hooks.

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after `forward`; what it returns, if not None, is the output.

        With `with_kwargs` it is called as `hook(module, args, kwargs, output)`.
        """
        return self._hooks.add("forward", hook, prepend, with_kwargs)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before `forward`; what it returns, if not None, are the arguments.

        With `with_kwargs` it is called as `hook(module, args, kwargs)`, and gives both back.
        """
        return self._hooks.add("forward_pre", hook, prepend, with_kwargs)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when gradients come to the module's outputs.

        What it returns, if not None, are the gradients that go on through the module.

        Example:
            >>> import pyflame as pf
            >>> layer, x = pf.nn.Linear(2, 1), pf.ones([1, 2], requires_grad=True)
            >>> handle = layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 0,))
            >>> layer(x).sum().backward()
            >>> x.grad.numpy().tolist()
            [[0.0, 0.0]]
        """
        return self._hooks.add("backward_pre", hook, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], *, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` once the gradient has passed the module."""
        return self._hooks.add("backward", hook, prepend)

    # Text.

    def extra_repr(self) -> str:
        """The settings shown in the module's text; a layer writes its own."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra, lines = self.extra_repr(), []
        for name, child in self._modules.items():
            lines.append(f"({name}): " + repr(child).replace("\n", "\n  "))
        if not lines:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}({extra}\n  " + "\n  ".join(lines) + "\n)"


def to_array(value: Any) -> np.ndarray:
    """A tensor of ours or of torch's, or an array, as an array."""
    if isinstance(value, np.ndarray):
        return whole(value, "an entry of the state_dict")
    detach = getattr(value, "detach", None)
    source: Any = detach() if callable(detach) else value
    if isinstance(source, Tensor):
        return source.numpy()
    if str(getattr(source, "dtype", "")) == "torch.bfloat16":
        import ml_dtypes

        return source.float().numpy().astype(ml_dtypes.bfloat16)
    return np.asarray(source)
