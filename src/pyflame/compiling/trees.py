"""Arguments and results as flat lists: tensors apart from everything else."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Plain", "blank", "flatten", "inside", "plain_arguments", "unflatten"]


def flatten(
    tree: Any,
    tensors: list[Any],
    known: Mapping[int, Any] = {},  # never changed
    opened: Callable[[Any], dict[str, Any] | None] | None = None,
) -> Any:
    """The structure of nested lists, tuples, dicts and dataclasses; tensors and arrays go to the list.

    What is neither stands for itself in the structure, so that structures are equal when calls are alike.

    Args:
        tree: what to take apart.
        tensors: gets the tensors.
        known: things, by id, that are left whole.
        opened: gives the attributes of any other object that is to be taken apart, too.
    """
    if isinstance(tree, (Handle, np.ndarray)):
        tensors.append(tree)
        return _TENSOR
    kind = type(tree)
    if kind is tuple or (kind is list and id(tree) not in known):
        return (kind, *[flatten(item, tensors, known, opened) for item in tree])
    if (kind is dict or kind is OrderedDict) and id(tree) not in known:
        return (kind, *[(key, flatten(value, tensors, known, opened)) for key, value in tree.items()])
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return (kind, *[flatten(item, tensors, known, opened) for item in tree])
    if dataclasses.is_dataclass(kind) and id(tree) not in known and _is_record(tree):
        fields = [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(kind)]
        return (kind, *[(name, flatten(value, tensors, known, opened)) for name, value in fields])
    attributes = None if opened is None else opened(tree)
    if attributes is not None:
        return (kind, *[(name, flatten(value, tensors, known, opened)) for name, value in attributes.items()])
    return Plain(tree)


def _is_record(tree: Any) -> bool:
    """Whether a dataclass object is its fields and nothing else, and cannot change or holds a tensor."""
    names = {f.name for f in dataclasses.fields(tree)}
    if any(not hasattr(tree, name) for name in names) or getattr(tree, "__dict__", {}).keys() - names:
        return False
    if tree.__dataclass_params__.frozen:
        return True
    found: list[Any] = []
    for name in names:
        flatten(getattr(tree, name), found)
    return bool(found)


class _Tensor:
    """Stands for a tensor in a structure."""

    def __repr__(self) -> str:
        return "<tensor>"


_TENSOR = _Tensor()


class Plain:
    """Anything else: compared by value where it can be, by identity where not."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self._hash = hash((type(value), value))
        except TypeError:
            self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plain):
            return False
        mine, yours = self.value, other.value
        if mine is yours:
            return True
        from pyflame.compiling.guards import same_plain

        # 1, 1.0 and True are equal to Python, not to a graph, and so are 0.0 and -0.0.
        return self._hash == other._hash and same_plain(mine, yours)


def unflatten(structure: Any, tensors: Iterator[Any], made: list[tuple[Any, list[Any]]] | None = None) -> Any:
    """The tree again.

    Args:
        structure: of the tree.
        tensors: those in it.
        made: gets every list, dict and object that is made and could be changed, with what is in it.
    """
    if structure is _TENSOR:
        return next(tensors)
    if isinstance(structure, Plain):
        return structure.value
    kind, *items = structure
    if kind is dict or kind is OrderedDict:
        tree: Any = kind((key, unflatten(value, tensors, made)) for key, value in items)
    elif dataclasses.is_dataclass(kind):
        tree = object.__new__(kind)  # type: ignore[arg-type]  # a class, as structures hold no objects
        for name, value in items:
            object.__setattr__(tree, name, unflatten(value, tensors, made))
    elif kind is tuple or kind is list or hasattr(kind, "_fields"):
        parts = [unflatten(item, tensors, made) for item in items]
        tree = kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    else:
        tree = object.__new__(kind)
        vars(tree).update((name, unflatten(value, tensors, made)) for name, value in items)
    if made is not None and not isinstance(tree, tuple):
        made.append((tree, inside(tree)))
    return tree


def inside(tree: Any) -> list[Any]:
    """What is in a list, dict or object, one after the other."""
    if isinstance(tree, list):
        return list(tree)
    entries = (
        tree if isinstance(tree, dict) else {f.name: getattr(tree, f.name, None) for f in dataclasses.fields(tree)}
    )
    return [*entries.keys(), *entries.values()]


def plain_arguments(structure: Any) -> dict[str, Any]:
    """The arguments that stand for themselves, by number."""
    found: dict[str, Any] = {}
    pending = [structure]
    while pending:
        item = pending.pop()
        if isinstance(item, Plain):
            found[f"argument {len(found)}"] = item.value
        elif isinstance(item, tuple):
            pending.extend(item)
    return found


def blank(structure: Any) -> Any:
    """A structure without the values of numbers and the like in it."""
    from pyflame.compiling.reach import is_plain

    if isinstance(structure, Plain):
        return type(structure.value) if is_plain(structure.value) else structure
    return tuple(map(blank, structure)) if isinstance(structure, tuple) else structure
