"""A compiled module: a module over the tables of another, whose calls are replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame.nn.module import Module

if TYPE_CHECKING:
    from pyflame.compiling.compiled import CompiledFunction
    from pyflame_rt.graph import Graph

__all__ = ["CompiledModule"]

_TABLES = ("_parameters", "_buffers", "_modules", "_transient", "_hooks")


class CompiledModule(Module):
    """What `pf.compile` makes of a module: parameters, buffers, children, hooks and attributes are the module's own.

    The state dict has the module's names, so that what was saved by one is loaded by the other.

    Example:
        >>> import pyflame as pf
        >>> model = pf.nn.Linear(2, 1)
        >>> compiled = pf.compile(model)
        >>> sorted(compiled.state_dict()) == sorted(model.state_dict()), compiled.weight is model.weight
        (True, True)
    """

    def __init__(self, module: Module, function: CompiledFunction) -> None:
        object.__setattr__(self, "_orig_mod", module)
        object.__setattr__(self, "_compiled", function)
        for table in _TABLES:
            object.__setattr__(self, table, getattr(module, table))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives."""
        return self._compiled(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, without its hooks."""
        return self._orig_mod.forward(*args, **kwargs)

    @property
    def trace_count(self) -> int:
        """How many traces there are."""
        return self._compiled.trace_count

    def latest_graph(self) -> Graph:
        """What the newest trace computes."""
        return self._compiled.latest_graph()

    def explain(self) -> str:
        """What was traced and why, and which calls run as they are."""
        return self._compiled.explain()

    if not TYPE_CHECKING:  # to type checkers it is the variable that every module has

        @property
        def training(self) -> bool:
            """Whether the module is in training mode."""
            return self._orig_mod.training

        @training.setter
        def training(self, mode: bool) -> None:
            self._orig_mod.training = mode

    def __getattr__(self, name: str) -> Any:
        if "_orig_mod" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]

    def __len__(self) -> int:
        return len(self._orig_mod)

    def __bool__(self) -> bool:
        return bool(self._orig_mod)

    def __iter__(self) -> Any:
        return iter(self._orig_mod)

    def __contains__(self, key: Any) -> bool:
        return key in self._orig_mod

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has no traces yet."""
        function = self._compiled
        return _restored, (self._orig_mod, function.fullgraph, function.recompile_limit)

    def __repr__(self) -> str:
        return f"compiled {self._orig_mod!r}"


def _restored(module: Module, fullgraph: bool, recompile_limit: int) -> CompiledModule:
    from pyflame.compiling.compiled import CompiledFunction

    return CompiledModule(module, CompiledFunction(module, fullgraph=fullgraph, recompile_limit=recompile_limit))
