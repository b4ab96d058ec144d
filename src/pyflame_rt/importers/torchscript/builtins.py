"""Operators of TorchScript on plain values: lists, dictionaries, texts, conversions, questions about tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError, InvalidModelError
from pyflame_rt.importers.aten.scalars import SCALARS, convert, is_number
from pyflame_rt.importers.aten.values import Num, dtype_of, is_static, number, number_kind, refuse, static, wrap
from pyflame_rt.importers.torchscript.archive import ScriptedObject
from pyflame_rt.importers.torchscript.objects import Cell, Maybe, OpenText, Record, ScriptDict, ScriptList
from pyflame_rt.importers.torchscript.structures import as_sequence, static_key
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.sequence import SequenceAt, SequenceErase, SequenceInsert, SequenceLength

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.importers.torchscript.machine import Machine

__all__ = ["BUILTINS"]

MAX_ITEMS = 1 << 20
BUILTINS: dict[str, Callable[..., Any]] = {}


def _builtin(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            BUILTINS[name] = function
        return function

    return register


# ---------------------------------------------------------------------- conversions


def _converted(kind: type) -> Callable[..., Any]:
    def converted(machine: Machine, x: Any) -> Any:
        if isinstance(x, Cell):
            return wrap(machine.plain(x), kind)
        return convert(x, kind)

    return converted


for _names, _kind in ((("int", "Int", "IntImplicit"), int), (("float", "Float", "FloatImplicit"), float),
                      (("bool", "Bool"), bool)):  # fmt: skip
    _builtin(*_names)(_converted(_kind))


@_builtin("str")
def _str(machine: Machine, x: Any) -> str:
    return _shown(machine, x)


def _shown(machine: Machine, x: Any) -> str:
    if isinstance(x, Cell):
        return OpenText(machine.plain(x))
    if isinstance(x, (ScriptList, ScriptDict, Record)) or not isinstance(x, (str, bool, int, float, type(None))):
        return OpenText(x)
    return x if isinstance(x, str) else OpenText(x) if not (x is None or is_static(x)) else str(x)


def _text(made: str, *parts: Any) -> str:
    """A text made of others, which is open as soon as one of them is."""
    return OpenText(made) if any(isinstance(part, OpenText) for part in parts) else made


def _closed(*texts: Any) -> None:
    if any(isinstance(text, OpenText) for text in texts):
        raise refuse("looking into a text that is made of sizes, numbers or tensors which are only known when running")


@_builtin("format")
def _format(machine: Machine, text: str, *args: Any) -> str:
    shown = [_shown(machine, a) for a in args]
    first, *rest = text.split("{}")
    parts = [first]
    for i, part in enumerate(rest):
        parts += [shown[i] if i < len(shown) else "{}", part]
    return _text("".join(parts), text, *shown)


@_builtin("warn", "print", "_assert_async", "manual_seed", "set_grad_enabled", "backward")
def _nothing(machine: Machine, *_: Any, **__: Any) -> None:
    del machine


@_builtin("is_grad_enabled")
def _grad_enabled(machine: Machine) -> bool:
    # As if gradients were wanted: modules then take their plain path instead of one fused operator.
    del machine
    return True


@_builtin("requires_grad")
def _requires_grad(machine: Machine, x: Cell, *_: Any) -> Any:
    del machine
    return bool(x.root.name) if not _ else x


@_builtin("is_autocast_enabled", "is_autocast_cpu_enabled", "is_nested", "is_cuda", "is_sparse", "is_quantized",
          "is_mkldnn", "is_complex", "is_scripting", "is_tracing", "is_xpu", "is_mps", "is_conj", "is_vulkan",
          "is_meta", "is_inference")  # fmt: skip
def _no(machine: Machine, *_: Any) -> bool:
    del machine
    return False


@_builtin("is_contiguous")
def _yes(machine: Machine, *_: Any, **__: Any) -> bool:
    del machine
    return True


@_builtin("is_floating_point")
def _is_float(machine: Machine, x: Cell) -> bool:
    return machine.plain(x).dtype.is_float


@_builtin("dtype")
def _dtype(machine: Machine, x: Cell) -> int:
    return dtype_of(machine.plain(x))


@_builtin("device")
def _device(machine: Machine, x: Any) -> str:
    del machine, x
    return "cpu"


@_builtin("layout", "get_device")
def _layout(machine: Machine, x: Any) -> int:
    del machine, x
    return 0


@_builtin("type")
def _device_type(machine: Machine, x: Any) -> Any:
    del machine
    return x if isinstance(x, str) else NotImplemented


@_builtin("index")
def _index(machine: Machine, x: Any, *args: Any) -> Any:
    del machine, args
    return "cpu" if isinstance(x, str) else NotImplemented


@_builtin("unchecked_unwrap_optional", "_unwrap_optional")
def _unwrap(machine: Machine, x: Any) -> Any:
    if x is None:
        raise InputError("the model needs a value where None was given")
    if not isinstance(x, Maybe):
        return x
    machine.guards.append((x.present, "the model needs a value where None was given"))
    return x.value


def _is_same(machine: Machine, a: Any, b: Any) -> Any:
    del machine
    if isinstance(a, Maybe) or isinstance(b, Maybe):
        known = b if a is None else a
        if isinstance(known, Maybe) and (a is None or b is None):
            return SCALARS["__not__"](known.present)
        raise refuse("whether two values that may be None are the same")
    return a is b or (isinstance(a, Cell) and isinstance(b, Cell) and a.base is None and a is b)


BUILTINS["__is__"] = _is_same
BUILTINS["__isnot__"] = lambda machine, a, b: SCALARS["__not__"](_is_same(machine, a, b))


# ---------------------------------------------------------------------- lists


def _at(machine: Machine, items: list[Any], place: Any) -> Any:
    index = static(place, "an index into a list")
    if not -len(items) <= index < len(items):
        raise InputError(f"index {index} of a list of {len(items)}")
    del machine
    return items[index]


@_builtin("__getitem__")
def _getitem(machine: Machine, owner: Any, place: Any) -> Any:
    if isinstance(owner, ScriptDict):
        if static_key(place) not in owner.items:
            raise InputError(f"a dictionary has no {place!r}")
        return owner.items[place]
    if isinstance(owner, ScriptList) and owner.sequence is not None:
        found = SequenceAt(owner.sequence, number(place, DType.Int64))
        return _alias(machine, found, owner) if owner.kind is None else Num(found, owner.kind)
    if isinstance(owner, str):
        _closed(owner)
        return _at(machine, list(owner), place)
    if isinstance(owner, ScriptList) and not is_static(place):
        return _picked(machine, owner, place)
    return _at(machine, machine.items(owner), place)


def _picked(machine: Machine, owner: ScriptList, place: Any) -> Any:
    """An item at a place that is only known when running."""
    kind = number_kind(owner.items[0]) if owner.items and is_number(owner.items[0]) else None
    found = SequenceAt(as_sequence(machine, owner, owner), number(place, DType.Int64))
    return _alias(machine, found, *owner.items) if kind is None else Num(found, kind)


def _alias(machine: Machine, found: Any, *holders: Any) -> Cell:
    """A tensor that was taken out of one of these, by a place that is only known when running."""
    made = machine.tensor(found)
    for holder in holders:
        made.link(holder)
    return made


def _placed(owner: ScriptList, place: Any) -> Any:
    """A place in a list of unknown length, from its front."""
    at = number(place, DType.Int64)
    if is_static(place) and place >= 0:
        return at
    return Where(at < 0, at + SequenceLength(owner.sequence), at)


def _put(machine: Machine, owner: ScriptList, item: Any, place: Any = None) -> None:
    """Put an item into a list of unknown length."""
    if owner.kind is None and not isinstance(item, Cell):
        raise refuse(f"a list whose length is only known when running, of {type(item).__name__} instead of tensors")
    if isinstance(item, Cell):
        owner.link(item)
    value = number(item) if is_number(item) else machine.plain(item)
    made = SequenceInsert(owner.sequence, value) if place is None else SequenceInsert(owner.sequence, value, place)
    owner.put([], made)


@_builtin("append")
def _append(machine: Machine, owner: ScriptList, item: Any) -> ScriptList:
    machine.touch(owner)
    if owner.sequence is not None:
        _put(machine, owner, item)
        return owner
    _bounded(len(owner.items) + 1)
    owner.items.append(item)
    return owner


@_builtin("extend")
def _extend(machine: Machine, owner: ScriptList, more: Any) -> None:
    for item in machine.items(more):
        _append(machine, owner, item)


@_builtin("insert")
def _insert(machine: Machine, owner: ScriptList, place: Any, item: Any) -> None:
    machine.touch(owner)
    if owner.sequence is not None:
        _put(machine, owner, item, number(place, DType.Int64))
        return
    machine.items(owner).insert(static(place, "a place in a list"), item)


@_builtin("pop")
def _pop(machine: Machine, owner: Any, place: Any = -1, *default: Any) -> Any:
    machine.touch(owner)
    if isinstance(owner, ScriptDict):
        if static_key(place) not in owner.items and not default:
            raise InputError(f"a dictionary has no {place!r}")
        return owner.items.pop(place, *default)
    if owner.sequence is not None:
        taken, at = _getitem(machine, owner, place), _placed(owner, place)
        owner.put([], SequenceErase(owner.sequence, at))
        return taken
    _at(machine, machine.items(owner), place)
    return machine.items(owner).pop(static(place, "a place in a list"))


@_builtin("Delete")
def _delete(machine: Machine, owner: Any, place: Any) -> None:
    _pop(machine, owner, place)


@_builtin("remove")
def _remove(machine: Machine, owner: ScriptList, item: Any) -> None:
    machine.touch(owner)
    items = machine.items(owner)
    if any(isinstance(other, Cell) for other in items):
        raise refuse("removing a tensor from a list by its value")
    wanted = static(item, "an item to remove")
    known = [static(other, "an item of a list") for other in items]
    if wanted not in known:
        raise InputError(f"a list has no {wanted!r} to remove")
    del items[known.index(wanted)]


@_builtin("reverse")
def _reverse(machine: Machine, owner: ScriptList) -> None:
    machine.touch(owner)
    machine.items(owner).reverse()


@_builtin("clear")
def _clear(machine: Machine, owner: Any) -> None:
    machine.touch(owner)
    owner.items.clear()
    if isinstance(owner, ScriptList):
        owner.put([], None)


@_builtin("_set_item")
def _set_item(machine: Machine, owner: Any, place: Any, item: Any) -> Any:
    machine.touch(owner)
    if isinstance(owner, ScriptDict):
        owner.items[static_key(place)] = item
        return None
    if owner.sequence is not None:
        at = _placed(owner, place)
        owner.put([], SequenceErase(owner.sequence, at))
        _put(machine, owner, item, at)
        return owner
    items = machine.items(owner)
    _at(machine, items, place)
    items[static(place, "an index into a list")] = item
    return owner


@_builtin("len")
def _len(machine: Machine, x: Any) -> Any:
    if isinstance(x, ScriptList) and x.sequence is not None:
        return Num(SequenceLength(x.sequence), int)
    if isinstance(x, Cell):
        return machine.operator("size", [x, 0], {})
    if isinstance(x, (ScriptDict, ScriptList)):
        return len(x.items)
    _closed(x)
    return len(x.values) if isinstance(x, Record) else len(x)


@_builtin("list", "copy")
def _list(machine: Machine, x: Any, *_: Any) -> Any:
    if isinstance(x, Cell):  # text, or the copy of a tensor into another
        return NotImplemented
    if isinstance(x, ScriptList):
        made = ScriptList(list(x.items), machine.depth, x.kind, x.sequence)
        if x.sequence is not None:
            made.link(x)
        return made
    return ScriptDict(dict(x.items), machine.depth) if isinstance(x, ScriptDict) else machine.listed(list(x))


@_builtin("__contains__")
def _contains(machine: Machine, owner: Any, item: Any) -> Any:
    if isinstance(owner, ScriptDict):
        return static_key(item) in owner.items
    _closed(owner, item)
    if isinstance(owner, str):
        return item in owner
    found: Any = False
    for other in machine.items(owner):
        same = SCALARS["eq"](other, item) if is_number(item) else other == item
        found = SCALARS["__or__"](found, same)
    return found


@_builtin("add_")
def _grown(machine: Machine, a: Any, b: Any = None, **_: Any) -> Any:
    if not isinstance(a, ScriptList):
        return NotImplemented
    _extend(machine, a, b)
    return a


@_builtin("add")
def _joined(machine: Machine, a: Any, b: Any = None, **_: Any) -> Any:
    if isinstance(a, ScriptList) and isinstance(b, ScriptList):
        left, right = machine.items(a), machine.items(b)
        _bounded(len(left) + len(right))
        return machine.listed([*left, *right], a.kind or b.kind)
    if isinstance(a, str) and isinstance(b, str):
        _bounded(len(a) + len(b))
        return _text(a + b, a, b)
    return NotImplemented


def _bounded(length: int) -> None:
    if length > MAX_ITEMS:
        raise InvalidModelError(f"a list or a text grows to {length} items; {MAX_ITEMS} are allowed")


@_builtin("mul")
def _repeated(machine: Machine, a: Any, b: Any = None, **_: Any) -> Any:
    if not isinstance(a, ScriptList):
        return NotImplemented
    times = static(b, "how often a list is repeated")
    _bounded(times * len(a.items))
    return machine.listed(machine.items(a) * times, a.kind)


@_builtin("slice")
def _slice(machine: Machine, x: Any, start: Any = None, end: Any = None, step: Any = 1, *_: Any) -> Any:
    if not isinstance(x, (ScriptList, str, tuple)):
        return NotImplemented
    part = slice(*(static(v, "a place in a list") for v in (start, end, step)))
    return machine.listed(machine.items(x)[part], x.kind) if isinstance(x, ScriptList) else x[part]


def _truth(name: str, joint: str, start: bool) -> None:
    def decided(machine: Machine, x: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(x, ScriptList) or rest or named:
            return NotImplemented
        found: Any = start
        for item in machine.items(x):
            found = SCALARS[joint](found, item)
        return found

    BUILTINS[name] = decided


_truth("all", "__and__", True)
_truth("any", "__or__", False)


def _listed_choice(name: str) -> None:
    def chosen(machine: Machine, x: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(x, ScriptList) and not rest and not named:
            return SCALARS[name](machine.items(x))
        return NotImplemented

    BUILTINS[name] = chosen


_listed_choice("max")
_listed_choice("min")


@_builtin("sum")
def _sum(machine: Machine, x: Any, *rest: Any, **named: Any) -> Any:
    if not isinstance(x, ScriptList) or rest or named:
        return NotImplemented
    total: Any = 0
    for item in machine.items(x):
        total = SCALARS["add"](total, item)
    return total


@_builtin("divmod")
def _divmod(machine: Machine, a: Any, b: Any) -> tuple[Any, Any]:
    del machine
    return SCALARS["floordiv"](a, b), SCALARS["remainder"](a, b)


# ---------------------------------------------------------------------- dictionaries


@_builtin("dict")
def _dict(machine: Machine, *_: Any) -> ScriptDict:
    return ScriptDict({}, machine.depth)


@_builtin("keys")
def _keys(machine: Machine, x: ScriptDict) -> ScriptList:
    return machine.listed(list(x.items))


@_builtin("values")
def _values(machine: Machine, x: Any) -> Any:
    return machine.listed(list(x.items.values())) if isinstance(x, ScriptDict) else NotImplemented


@_builtin("items")
def _items(machine: Machine, x: ScriptDict) -> ScriptList:
    return machine.listed([(k, v) for k, v in x.items.items()])


@_builtin("get")
def _get(machine: Machine, x: ScriptDict, key: Any, default: Any = None) -> Any:
    del machine
    return x.items.get(static_key(key), default)


@_builtin("setdefault")
def _setdefault(machine: Machine, x: ScriptDict, key: Any, default: Any = None) -> Any:
    machine.touch(x)
    return x.items.setdefault(static_key(key), default)


@_builtin("update")
def _update(machine: Machine, x: ScriptDict, other: ScriptDict) -> None:
    machine.touch(x)
    x.items.update(other.items)


# ---------------------------------------------------------------------- texts


def _same_text(name: str) -> None:
    def compared(machine: Machine, a: Any, b: Any) -> Any:
        if isinstance(a, (str, type(None))) or isinstance(b, (str, type(None))):
            _closed(a, b)
            if isinstance(a, Maybe) or isinstance(b, Maybe):
                return BUILTINS["__is__" if name == "eq" else "__isnot__"](machine, a, b)
            return (a == b) == (name == "eq")
        if isinstance(a, ScriptList) and isinstance(b, ScriptList):
            return SCALARS[name](machine.items(a), machine.items(b))
        if isinstance(a, ScriptedObject) and isinstance(b, ScriptedObject):  # members of enumerations
            return ((a.kind, a.attributes) == (b.kind, b.attributes)) == (name == "eq")
        return NotImplemented

    BUILTINS[name] = compared


_same_text("eq")
_same_text("ne")


@_builtin("join")
def _join(machine: Machine, text: str, parts: ScriptList) -> str:
    return _text(text.join(machine.items(parts)), text, *machine.items(parts))


def _of_text(name: str) -> None:
    """A method of texts that Python has, too."""

    def made(machine: Machine, text: Any, *args: Any) -> Any:
        if not isinstance(text, str):
            return NotImplemented
        _closed(text, *args)
        found = getattr(str, name)(text, *args)
        return machine.listed(found) if isinstance(found, list) else found

    BUILTINS[name] = made


for _name in ("endswith", "find", "isdigit", "lower", "lstrip", "replace", "rstrip", "split", "startswith", "strip",
              "upper"):  # fmt: skip
    _of_text(_name)
