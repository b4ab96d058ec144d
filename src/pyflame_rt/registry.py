"""Operators as users see them: look them up, list them, add one with a Python kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pyflame_rt.graph import Attribute, Node, Tensor
from pyflame_rt.graph.errors import BackendError, UndeterminedError
from pyflame_rt.graph.records import dataclass
from pyflame_rt.ops.registry import Op, all_ops, find_op, get_op, register, unregister
from pyflame_rt.ops.signature import Input, Signature

__all__ = ["KernelContext", "OperatorRegistry", "list_operators"]


@dataclass(frozen=True, slots=True)
class KernelContext:
    """What a Python kernel gets besides its inputs.

    Attributes:
        node: the operator with the attributes given in the model; read them with ``get_attr``.
    """

    node: Node


Kernel = Callable[[list[Tensor], KernelContext], Any]


class _OpenSignature(Signature):
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
        return find_op(*_split(name, domain)) is not None

    def get(self, name: str, domain: str = "") -> Op:
        """The operator; raises UnsupportedOperatorError when nobody declared it."""
        return get_op(*_split(name, domain))

    def list_ops(self) -> list[str]:
        """Names of all operators."""
        return list_operators()

    def register_op(self, name: str, kernel: Kernel, *, domain: str = "") -> None:
        """Add an operator that a Python function computes.

        Args:
            name: its name in models; one of the same name is replaced.
            kernel: called as ``kernel(inputs, context)`` with the inputs as Tensors; gives a list
                of Tensors or arrays, or one. An error it raises stops the run as BackendError.
            domain: its domain in models.
        """
        name, domain = _split(name, domain)

        def body(ops: Any, *arrays: Any, **attributes: Any) -> tuple[Any, ...]:
            del ops
            inputs = [None if a is None else Tensor(np.asarray(a)) for a in arrays]
            node = Node(name, name, attributes=attributes, domain=domain)
            return _arrays(kernel(inputs, KernelContext(node)), name)  # type: ignore[arg-type]

        signature = _OpenSignature((Input("inputs", variadic=True),), {})
        register(Op(name, domain, 1, body, composite=False, infer=_unknown, host=True, schema=signature))

    def unregister_op(self, name: str, *, domain: str = "") -> None:
        """Forget an operator."""
        unregister(*_split(name, domain))


def list_operators(domain: str | None = None) -> list[str]:
    """Names of the operators that models may use, those of other domains as ``domain::name``.

    Args:
        domain: list only this one's; "" is ONNX's own.

    Example:
        >>> "Add" in list_operators("")
        True
    """
    return [op.full_name for op in all_ops() if domain is None or op.domain == domain]


def _split(name: str, domain: str) -> tuple[str, str]:
    if "::" in name and not domain:
        domain, _, name = name.rpartition("::")
    return name, domain


def _unknown(*inputs: Any, **attributes: Any) -> Any:
    raise UndeterminedError(
        f"a Python kernel's results are known when it ran ({len(inputs)} inputs, {len(attributes)} attributes)"
    )


def _arrays(results: Any, name: str) -> tuple[Any, ...]:
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
