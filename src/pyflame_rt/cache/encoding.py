"""Graphs and plans as plain data: JSON for what they are made of, raw bytes for arrays, never code.

A document is the length of its JSON text, the text, and the bytes of arrays. Lists, texts and numbers are themselves;
everything else is an object of one key, the name of a kind, with the parts it is made from. Kinds are a fixed table: a
name that is not in it is an error, and nothing is ever looked up by name in a module. An object used twice is written
once; later uses give its number, which counts in the order in which objects are complete.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyflame_rt.graph.dtype import DType
from pyflame_rt.graph.errors import DTypeMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Codec", "DecodeError", "EncodeError", "Kind", "record"]

_LENGTH = struct.Struct("<Q")
_ALIGN = 64
_LONG = 48  # texts from this length on are written once
_FAULTS = (LookupError, TypeError, ValueError, AttributeError, RecursionError, DTypeMismatchError)


class EncodeError(Exception):
    """A value holds something that has no kind."""


class DecodeError(Exception):
    """Bytes are no document, or name something that no longer is what it was."""


class Kind(NamedTuple):
    """How objects of one class are written.

    Attributes:
        name: in documents.
        cls: exactly this class.
        parts: what an object is made from.
        make: an object from its parts.
    """

    name: str
    cls: type
    parts: Callable[[Any], Iterable[Any]]
    make: Callable[..., Any]


def record(cls: type) -> Kind:
    """The kind of a class made from its fields, in their order."""
    names = [f.name for f in fields(cls)]
    if len(names) == 1:
        only = attrgetter(names[0])
        return Kind(cls.__name__, cls, lambda value: (only(value),), cls)
    return Kind(cls.__name__, cls, attrgetter(*names) if names else lambda _: (), cls)


class Codec:
    """Writes and reads values of a fixed set of kinds.

    Args:
        kinds: of classes besides None, numbers, texts, bytes, lists, tuples, dicts, sets and arrays.

    Example:
        >>> codec = Codec([])
        >>> codec.decode(codec.encode({"sizes": (1, 2.5, None), "data": np.arange(3)}))
        {'sizes': (1, 2.5, None), 'data': array([0, 1, 2])}
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = {kind.cls: kind for kind in kinds}
        self._made = {kind.name: kind.make for kind in self._kinds.values()}
        if len(self._made) != len(self._kinds):
            raise ValueError("two kinds have one name")

    def encode(self, value: object, places: Callable[[np.ndarray[Any, Any]], Kinded | None] | None = None) -> bytes:
        """The document of a value.

        Args:
            value: made of known kinds alone.
            places: tells what stands for an array that is kept elsewhere; None for one that goes into the document.

        Raises:
            EncodeError: Part of it has no kind.
        """
        writer = _Writer(self._kinds, places)
        try:
            text = json.dumps(writer.value(value), separators=(",", ":")).encode()
        except RecursionError as error:
            raise EncodeError("it is nested too deeply") from error
        head = _LENGTH.pack(len(text)) + text
        return b"".join([head, bytes(-len(head) % _ALIGN), *writer.blobs])

    def decode(self, data: bytes, makers: dict[str, Callable[..., Any]] | None = None) -> Any:
        """The value of a document.

        Args:
            data: the document.
            makers: of further names: how what stands for an array elsewhere is found.

        Raises:
            DecodeError: It is none, or a kind is not known, or refuses its parts.
        """
        if len(data) < _LENGTH.size:
            raise DecodeError("a document is longer")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if end > len(data):
            raise DecodeError("a document ends early")
        reader = _Reader(self._made | (makers or {}), memoryview(data)[end + -end % _ALIGN :])
        try:
            return json.loads(data[_LENGTH.size : end], object_hook=reader.made)
        except _FAULTS as error:
            raise DecodeError(f"{type(error).__name__}: {error}") from error


class Kinded(NamedTuple):
    """A kind's name, and parts."""

    name: str
    parts: tuple[Any, ...]


class _Writer:
    def __init__(self, kinds: dict[type, Kind], places: Callable[[np.ndarray[Any, Any]], Kinded | None] | None) -> None:
        self.kinds, self.places = kinds, places
        self.blobs: list[bytes] = []
        self.end = 0
        self.count = 0
        self.numbers: dict[Any, int] = {}
        self.alive: list[Any] = []  # so that no other object gets the identity of one that was written
        self.plain: dict[type, Callable[[Any], Any]] = {
            **dict.fromkeys((type(None), bool, int, float), lambda v: v),
            str: self._text,
            list: lambda v: [self.value(e) for e in v],
            tuple: lambda v: self._tagged("t", v),
            dict: lambda v: self._tagged("d", (part for pair in v.items() for part in pair)),
            set: lambda v: self._tagged("set", v),
            frozenset: lambda v: self._tagged("frozen", v),
            bytes: lambda v: self._tagged("b", (v.decode("latin-1"),)),
            slice: lambda v: self._tagged("slice", (v.start, v.stop, v.step)),
            DType: lambda v: self._tagged("type", (v.label,)),
        }

    def value(self, value: Any) -> Any:
        """A value as JSON has it."""
        known = self.plain.get(type(value))
        if known is not None:
            return known(value)
        number = self.numbers.get(id(value))
        if number is not None:
            return {"r": number}
        kind = self.kinds.get(type(value))
        if kind is not None:
            written = {kind.name: [self.value(part) for part in kind.parts(value)]}
        elif isinstance(value, np.ndarray):
            written = self._array(value)
        elif isinstance(value, np.generic):
            written = {"scalar": [self._array(np.asarray(value))]}
            self.count += 1  # the array's own
        else:
            raise EncodeError(f"{type(value).__qualname__} has no kind")
        return self._numbered(id(value), value, written)

    def _tagged(self, name: str, parts: Iterable[Any]) -> Any:
        written = {name: [self.value(part) for part in parts]}
        self.count += 1
        return written

    def _numbered(self, key: Any, value: Any, written: Any) -> Any:
        self.numbers[key] = self.count
        self.count += 1
        self.alive.append(value)
        return written

    def _text(self, text: str) -> Any:
        if len(text) < _LONG:
            return text
        number = self.numbers.get(text)
        return self._numbered(text, text, {"s": [text]}) if number is None else {"r": number}

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        place = None if self.places is None else self.places(array)
        if place is not None:
            return {place.name: [self.value(part) for part in place.parts]}
        try:
            label = DType.of(array.dtype).label
        except DTypeMismatchError as error:
            raise EncodeError(str(error)) from error
        if array.dtype == object:
            return {"texts": [self.value(list(array.shape)), self.value(array.ravel().tolist())]}
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise EncodeError("an array with gaps")
        order = "C" if array.flags.c_contiguous else "F"
        start, data = self.end, array.tobytes("A")
        self.blobs += [data, bytes(-len(data) % _ALIGN)]
        self.end += len(data) + -len(data) % _ALIGN
        return {"a": [label, list(array.shape), order, start]}


class _Reader:
    def __init__(self, makers: dict[str, Callable[..., Any]], blobs: memoryview) -> None:
        self.makers = makers | {
            "d": lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True)),
            "s": _text,
            "b": lambda text: text.encode("latin-1"),
            "set": lambda *parts: set(parts),
            "frozen": lambda *parts: frozenset(parts),
            "slice": slice,
            "type": _type,
            "scalar": lambda array: array[()],
            "texts": _texts,
            "a": self._array,
        }
        self.blobs = blobs
        self.objects: list[Any] = []

    def made(self, written: dict[str, Any]) -> Any:
        """What an object of JSON's stands for."""
        ((name, parts),) = written.items()
        if name == "r":
            if type(parts) is not int or parts < 0:
                raise ValueError(f"{parts!r} is no object's number")
            return self.objects[parts]
        made = tuple(parts) if name == "t" else self.makers[name](*parts)
        self.objects.append(made)
        return made

    def _array(self, label: str, shape: list[int], order: Any, start: int) -> np.ndarray[Any, Any]:
        kind = _type(label)
        dtype = kind.numpy
        count = math.prod(shape)
        if kind is DType.String or min([start, *shape]) < 0 or start + count * dtype.itemsize > len(self.blobs):
            raise ValueError("an array lies outside the document")
        return np.frombuffer(self.blobs, dtype, count, start).reshape(shape, order=order).copy(order)


def _text(text: str) -> str:
    return text


_TYPES = {dtype.label: dtype for dtype in DType}


def _type(label: str) -> DType:
    return _TYPES[label]


def _texts(shape: list[int], texts: list[Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(texts), dtype=object)
    out[:] = texts
    return out.reshape(shape)
