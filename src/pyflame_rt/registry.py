"""Operators as users see them: look them up, list them, add one with a Python kernel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pyflame_rt.graph import Attribute, Graph, Node, Tensor
from pyflame_rt.graph.errors import BackendError, InputError
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.graph.named_arguments import names_arguments
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.core.registry import Op, all_ops, find_op, get_op, register, unregister
from pyflame_rt.ops.core.signature import Signature

__all__ = [
    "KernelContext",
    "OperatorRegistry",
    "add_op",
    "depends_on_added",
    "list_operators",
    "remove_op",
    "replaced_ops",
]


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What a Python kernel gets besides its inputs.

    Attributes:
        node: the operator with the attributes given in the model; read them with ``get_attr``.
    """

    node: Node


Kernel = Callable[[list[Tensor], KernelContext], Any]


class OpenSignature(Signature):
    """Any inputs, any attributes: the kernel decides."""

    __slots__ = ()

    def bind(self, given: Mapping[str, Attribute], where: str) -> dict[str, Attribute]:
        del where
        return dict(given)


class OperatorRegistry:
    """All operators of the process; there is one, see :meth:`instance`.

    Example:
        >>> registry = OperatorRegistry.instance()
        >>> registry.register_op("Twice", lambda inputs, ctx: [inputs[0].numpy() * 2])
        >>> registry.has("Twice"), registry.get("Twice")
        (True, <primitive Twice-1>)
        >>> registry.unregister_op("Twice")
    """

    _instance: OperatorRegistry | None = None

    @classmethod
    def instance(cls) -> OperatorRegistry:
        """The registry."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def has(self, name: str, domain: str = "") -> bool:
        """True when the operator is known."""
        return find_op(*split_name(name, domain)) is not None

    def get(self, name: str, domain: str = "") -> Op:
        """The operator; raises UnsupportedOperatorError when nobody declared it."""
        return get_op(*split_name(name, domain))

    def list_ops(self) -> list[str]:
        """Names of all operators."""
        return list_operators()

    def register_op(self, name: str, kernel: Kernel, *, domain: str = "", override: bool = False) -> None:
        """Add an operator that a Python function computes.

        Args:
            name: its name in models; one added before under it is replaced, with a warning.
            kernel: called as ``kernel(inputs, context)`` with the inputs as Tensors; gives a list
                of Tensors or arrays, or one. An error it raises stops the run as BackendError.
            domain: its domain in models.
            override: replace a built-in operator too; :meth:`unregister_op` brings it back.

        Raises:
            InputError: a built-in operator has this name, and ``override`` is not given.
        """
        from pyflame_rt.custom.operator import CONTEXT, OpSchema
        from pyflame_rt.custom.registry import CustomOpRegistry

        name, domain = split_name(name, domain)
        if not callable(kernel):
            raise InputError(f"operator {name}: {kernel!r} cannot be called")
        schema = OpSchema(name, domain, kernel=kernel, signature=CONTEXT)
        CustomOpRegistry.instance().register_op(schema, override=override)

    def unregister_op(self, name: str, *, domain: str = "") -> None:
        """Forget an operator that was added; a built-in one that it replaced is back."""
        from pyflame_rt.custom.registry import CustomOpRegistry

        CustomOpRegistry.instance().withdraw(*split_name(name, domain))


_added: dict[tuple[str, str], Op | None] = {}  # what was added while running, with the built-in that it replaced
_adding = new_rlock()


def is_built_in(name: str, domain: str = "") -> bool:
    """True for an operator that was declared, not added while running."""
    return (domain, name) not in _added and find_op(name, domain) is not None


def was_added(name: str, domain: str = "") -> bool:
    """True for an operator that was added while running."""
    return (domain, name) in _added


def depends_on_added(graph: Graph) -> bool:
    """Whether what a graph computes depends on operators that were added while running.

    What is kept on disk of such a graph would outlive them: another process may mean something else by their names.
    """
    if not _added:
        return False
    if replaced_ops():
        return True  # operators of ours may be made of the one that was replaced
    pending = [graph]
    while pending:
        current = pending.pop()
        if any((node.domain, node.op_type) in _added for node in current.nodes):
            return True
        pending.extend(current.subgraphs())
    return False


def replaced_ops() -> list[str]:
    """Built-in operators that mean something else in this process; rewrites of graphs know only what they were.

    Example:
        >>> replaced_ops()
        []
    """
    return [before.full_name for before in tuple(_added.values()) if before is not None]


def add_op(op: Op, *, override: bool = False, stacklevel: int = 3) -> None:
    """Add an operator to the process: the one way in for those that are not declared in the package.

    Args:
        op: one added before under its name is replaced, with a warning.
        override: replace a built-in operator too, until :func:`remove_op`.
        stacklevel: whose line the warning names.

    Raises:
        InputError: a built-in operator has this name, and ``override`` is not given.
    """
    key = (op.domain, op.name)
    with _adding:
        before = find_op(op.name, op.domain)
        if key in _added:
            text = (
                f"operator {op.full_name} was registered before and is replaced; sessions made before keep the old one "
                f"for input shapes they have run, and look it up again for others: make them anew"
            )
            warnings.warn(text, stacklevel=stacklevel)
        elif before is not None and not override:
            raise InputError(
                f"operator {op.full_name} is built in. To replace it in every model of this process, register with "
                f"override=True; otherwise give a domain of your own, such as domain='custom'"
            )
        _added.setdefault(key, before)
        register(op)


def remove_op(name: str, domain: str = "") -> None:
    """Forget an operator that was added, and bring back the built-in one that it replaced.

    Raises:
        InputError: the operator is built in.
        UnsupportedOperatorError: there is no such operator.
    """
    with _adding:
        if (domain, name) not in _added:
            raise InputError(f"operator {get_op(name, domain).full_name} is built in and cannot be unregistered")
        before = _added.pop((domain, name))
        if before is None:
            unregister(name, domain)
        else:
            register(before)


@names_arguments
def list_operators(domain: str | None = None) -> list[str]:
    """Names of the operators that models may use, those of other domains as ``domain::name``.

    Args:
        domain: list only this one's; "" is ONNX's own.

    Example:
        >>> "Add" in list_operators("")
        True
    """
    return [op.full_name for op in all_ops() if domain is None or op.domain == domain]


def split_name(name: str, domain: str) -> tuple[str, str]:
    """Name and domain, where the name may be ``domain::name``."""
    if "::" in name and not domain:
        domain, _, name = name.rpartition("::")
    return name, domain


def kernel_arrays(results: Any, name: str) -> tuple[Any, ...]:
    """What a Python kernel gave, a list or one result, as arrays."""
    listed: Sequence[Any] = results if isinstance(results, (list, tuple)) else [results]
    return tuple(_array(r, name) for r in listed)


def _array(result: Any, name: str) -> Any:
    if isinstance(result, Tensor):
        return result.raw()
    if result is None or isinstance(result, (list, dict)):
        return result
    array = np.asarray(result)
    if array.dtype == object and not all(isinstance(v, str) for v in _flat(array)):
        raise BackendError(f"the kernel of {name} gave {type(result).__name__}, not a Tensor or array")
    return array


def _flat(array: np.ndarray[Any, Any]) -> Iterable[Any]:
    return array.ravel()
