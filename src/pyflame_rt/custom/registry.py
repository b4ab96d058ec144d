"""The custom operators of the process, found by bare or full name."""

from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING, NamedTuple

from pyflame_rt.custom.operator import CustomOp, OpSchema
from pyflame_rt.custom.plugins import load_plugins
from pyflame_rt.graph.errors import UnsupportedOperatorError
from pyflame_rt.graph.locks import new_rlock
from pyflame_rt.ops.core.registry import find_op
from pyflame_rt.registry import add_op, is_built_in, remove_op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyflame_rt.graph import Graph
    from pyflame_rt.ops.core.registry import Op

__all__ = ["CustomOpRegistry", "PackedOp"]


class PackedOp(NamedTuple):
    """An operator on its way to another process.

    Attributes:
        domain: its domain in models.
        name: its name in models.
        content: what was stated about it, pickled; or why it cannot be.
    """

    domain: str
    name: str
    content: bytes | str


def _packed(schema: OpSchema) -> PackedOp:
    try:
        content: bytes | str = pickle.dumps(schema)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
        content = str(error)
    return PackedOp(schema.domain, schema.name, content)


class CustomOpRegistry:
    """All custom operators; there is one registry, see :meth:`instance`.

    Example:
        >>> from pyflame_rt.custom import register_custom_op
        >>> registry = CustomOpRegistry.instance()
        >>> _ = register_custom_op("Halve", domain="mine", function=lambda x: x * 0.5)
        >>> registry.list(), registry.has("Halve"), registry.get("mine::Halve").full_name()
        (['mine::Halve'], True, 'mine::Halve')
        >>> registry.unregister("Halve")
    """

    _instance: CustomOpRegistry | None = None

    def __init__(self) -> None:
        self._ops: dict[tuple[str, str], tuple[CustomOp, list[Op]]] = {}
        self._lock = new_rlock()

    @classmethod
    def instance(cls) -> CustomOpRegistry:
        """The registry."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def register_op(self, schema: OpSchema, *, override: bool = False, stacklevel: int = 4) -> CustomOp:
        """Make an operator known; one of the same name and domain is replaced, with a warning.

        Args:
            schema: what a builder collected.
            override: in the domain "" only: replace a built-in operator too.
            stacklevel: whose line the warning names.
        """
        made = CustomOp(schema)
        forms = list(made.ops)
        if schema.domain == "custom":  # models may leave this domain out, where the bare name is free
            forms += [dataclasses.replace(op, domain="") for op in made.ops if not is_built_in(op.name)]
        with self._lock:
            add_op(forms[0], override=override, stacklevel=stacklevel)
            self._forget(schema.name, schema.domain, keep=forms[0])
            for op in forms[1:]:
                add_op(op, override=override, stacklevel=stacklevel)
            self._ops[schema.domain, schema.name] = (made, forms)
        return made

    def _forget(self, name: str, domain: str, keep: Op | None = None) -> None:
        _, forms = self._ops.pop((domain, name), (None, []))
        for op in forms:
            kept = keep is not None and (op.domain, op.name) == (keep.domain, keep.name)
            if not kept and find_op(op.name, op.domain) is op:  # another may have taken the name since
                remove_op(op.name, op.domain)

    def withdraw(self, name: str, domain: str) -> None:
        """Forget an operator by name and domain; a built-in one that it replaced is back."""
        with self._lock:
            if (domain, name) in self._ops:
                self._forget(name, domain)
            else:
                remove_op(name, domain)

    def used_by(self, graph: Graph) -> tuple[OpSchema, ...]:
        """What was stated about the custom operators of a graph: another process can register them from it."""
        pending, names = [graph], set()
        while pending:
            current = pending.pop()
            names |= {(node.domain, node.op_type) for node in current.nodes}
            pending.extend(current.subgraphs())
        entries = [self._ops[key] for key in sorted(self._ops)]
        return tuple(op.schema for op, forms in entries if any((f.domain, f.name) in names for f in forms))

    def adopt(self, schemas: Iterable[OpSchema]) -> None:
        """Register operators of another process; those that are here already stay."""
        for schema in schemas:
            if (schema.domain, schema.name) not in self._ops:
                self.register_op(schema, override=True)

    def packed_for(self, graph: Graph) -> tuple[PackedOp, ...]:
        """The custom operators of a graph, each pickled as far as it can be: for a session that is pickled itself."""
        return tuple(map(_packed, self.used_by(graph)))

    def unpack(self, packed: Iterable[PackedOp]) -> None:
        """Register operators that came with a session or a part of a model; those that are here already stay.

        Raises:
            UnsupportedOperatorError: one could not be pickled or unpickled, and nobody registered it here.
        """
        missing = [op for op in packed if (op.domain, op.name) not in self._ops]
        if missing:
            load_plugins()
        for op in missing:
            if (op.domain, op.name) in self._ops:
                continue
            name = f"{op.domain}::{op.name}" if op.domain else op.name
            if not isinstance(op.content, bytes):
                raise UnsupportedOperatorError(
                    f"the session uses operator {name}, whose functions could not be pickled with it ({op.content}). "
                    f"Register it here before, or define them in a module"
                )
            try:
                schema = pickle.loads(op.content)  # noqa: S301 - a part of what is being unpickled
            except Exception as error:
                raise UnsupportedOperatorError(
                    f"the session uses operator {name}, whose functions are not here ({error}). Register it here "
                    f"before, or define them in a module that both processes import"
                ) from error
            self.adopt([schema])

    def list(self) -> list[str]:
        """Full names of all custom operators."""
        return sorted(op.full_name() for op, _ in self._ops.values())

    def has(self, name: str) -> bool:
        """True when there is an operator of this bare or full name."""
        return self._find(name) is not None

    def get(self, name: str) -> CustomOp:
        """The operator of this bare or full name."""
        found = self._find(name)
        if found is None:
            known = ", ".join(self.list()) or "none"
            raise UnsupportedOperatorError(f"there is no custom operator {name!r}. Registered: {known}")
        return found

    def _find(self, name: str) -> CustomOp | None:
        domain, _, bare = name.rpartition("::")
        if domain:
            return self._ops.get((domain, bare), (None, []))[0]
        fitting = [op for (home, n), (op, _) in sorted(self._ops.items(), key=_own_domain_first) if n == bare]
        return fitting[0] if fitting else None

    def unregister(self, name: str) -> None:
        """Forget an operator: sessions that are made later do not find it."""
        op = self.get(name)
        with self._lock:
            self._forget(op.name, op.domain)

    def clear(self) -> None:
        """Forget all custom operators."""
        with self._lock:
            for domain, name in [*self._ops]:
                self._forget(name, domain)

    def size(self) -> int:
        """How many there are."""
        return len(self._ops)


def _own_domain_first(item: tuple[tuple[str, str], object]) -> tuple[bool, str]:
    return item[0][0] != "custom", item[0][0]
