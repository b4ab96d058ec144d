"""Modules that hold modules or parameters."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from pyflame.nn.module import Module
from pyflame.nn.parameter import Parameter

__all__ = ["Identity", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _position(index: int, size: int) -> int:
    number = operator.index(index)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of range for {size} entries")
    return number % size


class Identity(Module):
    """Gives back what it gets; any arguments to its construction are ignored, as in torch.

    Example:
        >>> import pyflame as pf
        >>> pf.nn.Identity()(pf.ones([2])).numpy().tolist()
        [1.0, 1.0]
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """The input."""
        return input


class _Listed(Module):
    """Children called "0", "1", ...: what Sequential and ModuleList share."""

    def _renumber(self, modules: Iterable[Module]) -> None:
        children = list(modules)
        self._modules.clear()
        for index, module in enumerate(children):
            self.register_module(str(index), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(module for module in self._modules.values() if module is not None)

    def __contains__(self, module: object) -> bool:
        return any(child is module for child in self._modules.values())

    def _key(self, index: int) -> str:
        return list(self._modules)[_position(index, len(self))]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> _Listed: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            part = type(self)()
            for name in list(self._modules)[index]:
                part.register_module(name if isinstance(self, Sequential) else str(len(part)), self._modules[name])
            return part
        return self._modules[self._key(index)]

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(self._key(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)
        doomed = set(names[index]) if isinstance(index, slice) else {self._key(index)}
        self._renumber([child for name, child in self._modules.items() if name not in doomed and child is not None])

    def append(self, module: Module) -> Any:
        """Add one module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add several modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Put a module before position `index`."""
        children = list(self)
        children.insert(index, module)
        self._renumber(children)
        return self

    def pop(self, index: int = -1) -> Any:
        """Take a module out and return it."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Listed):
    """Modules called one after the other: given one by one, as a list, or with names in an OrderedDict.

    Example:
        >>> import pyflame as pf
        >>> net = pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.ReLU(), pf.nn.Linear(8, 2))
        >>> net(pf.ones([1, 4])).shape, len(net)
        ([1, 2], 3)
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.register_module(name, module)
            return
        listed = modules[0] if len(modules) == 1 and isinstance(modules[0], list | tuple) else modules
        self._renumber(listed)

    def add(self, module: Module) -> Sequential:
        """Add one module at the end."""
        return self.append(module)

    def forward(self, input: Any) -> Any:
        """The last module's answer to the answer of the one before it."""
        for module in self._modules.values():
            if module is not None:
                input = module(input)
        return input


class ModuleList(_Listed):
    """A list of modules whose parameters belong to the model; it is not called itself.

    Example:
        >>> import pyflame as pf
        >>> layers = pf.nn.ModuleList([pf.nn.Linear(2, 2) for _ in range(3)])
        >>> len(layers), len(list(layers.parameters()))
        (3, 6)
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)


class ModuleDict(Module):
    """Modules by name whose parameters belong to the model.

    Example:
        >>> import pyflame as pf
        >>> heads = pf.nn.ModuleDict({"a": pf.nn.Linear(2, 3)})
        >>> "a" in heads, heads["a"](pf.ones([1, 2])).shape
        (True, [1, 3])
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules."""
        for name, module in dict(modules).items():
            self[name] = module

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.register_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._modules.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and modules."""
        return self._modules.items()

    def pop(self, name: str) -> Any:
        """Take a module out and return it."""
        return self._modules.pop(name)

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()


class ParameterList(Module):
    """A list of parameters that belong to the model.

    Example:
        >>> import pyflame as pf
        >>> weights = pf.nn.ParameterList([pf.nn.Parameter(pf.ones([2])) for _ in range(2)])
        >>> len(weights), len(list(weights.parameters()))
        (2, 2)
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def append(self, value: Any) -> ParameterList:
        """Add one parameter, or a tensor that becomes one."""
        self.register_parameter(str(len(self)), value if isinstance(value, Parameter) else Parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add several."""
        for value in values:
            self.append(value)
        return self

    def __getitem__(self, index: int) -> Any:
        return self._parameters[str(_position(index, len(self)))]

    def __setitem__(self, index: int, value: Any) -> None:
        name = str(_position(index, len(self)))
        self.register_parameter(name, value if isinstance(value, Parameter) else Parameter(value))

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())


class ParameterDict(Module):
    """Parameters by name that belong to the model.

    Example:
        >>> import pyflame as pf
        >>> weights = pf.nn.ParameterDict({"scale": pf.nn.Parameter(pf.ones([2]))})
        >>> weights["scale"].shape, list(weights)
        ([2], ['scale'])
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        for name, value in OrderedDict(parameters or {}).items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        return self._parameters[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, value if isinstance(value, Parameter) else Parameter(value))

    def __delitem__(self, name: str) -> None:
        del self._parameters[name]

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parameters."""
        return self._parameters.items()
