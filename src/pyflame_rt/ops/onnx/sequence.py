"""Sequences (Python lists of tensors) and optionals (a value, or None)."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyflame_rt.graph import AnyType, DType, Graph, OptionalType, SequenceType, Shape, TensorType, ValueType
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UndeterminedError
from pyflame_rt.ops.core.guards import has_rank
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.size_arithmetic import join_types, known_ints
from pyflame_rt.ops.core.type_rules import normalize_axis, tensor_like
from pyflame_rt.ops.core.value import Value
from pyflame_rt.ops.onnx.control import infer_body, split_captures

__all__ = [
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
]


def _elem(sequence: Value) -> ValueType | None:
    """The type of a sequence's elements, or None."""
    kind = sequence.type.elem if isinstance(sequence.type, OptionalType) else sequence.type
    if kind is not None and not isinstance(kind, (SequenceType, AnyType)):
        raise InputError(f"a sequence is needed, got {kind}")
    return kind.elem if isinstance(kind, SequenceType) and not isinstance(kind.elem, AnyType) else None


def _of(elem: ValueType | None) -> SequenceType:
    return SequenceType(AnyType() if elem is None else elem)


def _same_sequence(input_sequence: Value, /, *_: Value | None, **__: Any) -> SequenceType:
    return _of(_elem(input_sequence))


def _place(ops: Any, position: Any, length: int, last: int) -> int:
    """A position from 0; ``last`` is the largest that is allowed."""
    place = int(ops.to_numpy(position).item())
    if not -length <= place <= last:
        raise InputError(f"position {place} is out of range for a sequence of {length}")
    return place + length if place < 0 else place


# ---------------------------------------------------------------------- building


def _construct_type(*inputs: Value) -> SequenceType:
    elem: ValueType | None = inputs[0].type
    for value in inputs[1:]:
        elem = join_types(elem, value.type)
    return _of(elem)


@primitive(since=11, infer=_construct_type, types="T* > ?")
def SequenceConstruct(_ops: Any, /, *inputs: Any) -> list[Any]:
    """A sequence of the given tensors."""
    return list(inputs)


def _empty_type(*, dtype: int | None) -> SequenceType:
    return SequenceType(TensorType(DType.Float32 if dtype is None else DType.from_onnx(dtype)))


@primitive(since=11, infer=_empty_type)
def SequenceEmpty(_ops: Any, /, *, dtype: int | None = None) -> list[Any]:
    """A sequence of nothing."""
    return []


def _insert_type(input_sequence: Value, tensor: Value, position: Value | None = None, /) -> SequenceType:
    return _of(join_types(_elem(input_sequence), tensor.type))


@primitive(since=11, infer=_insert_type)
def SequenceInsert(ops: Any, input_sequence: list[Any], tensor: Any, position: Any = None, /) -> list[Any]:
    """With a tensor put before a position, or at the end."""
    length = len(input_sequence)
    place = length if position is None else _place(ops, position, length, length)
    return [*input_sequence[:place], tensor, *input_sequence[place:]]


@primitive(since=11, infer=_same_sequence)
def SequenceErase(ops: Any, input_sequence: list[Any], position: Any = None, /) -> list[Any]:
    """Without the tensor at a position, or without the last."""
    length = len(input_sequence)
    if not length:
        raise InputError("the sequence is empty")
    place = length - 1 if position is None else _place(ops, position, length, length - 1)
    return [*input_sequence[:place], *input_sequence[place + 1 :]]


# ---------------------------------------------------------------------- reading


def _at_type(input_sequence: Value, position: Value, /) -> Value:
    return Value(None, _elem(input_sequence))


@primitive(since=11, infer=_at_type)
def SequenceAt(ops: Any, input_sequence: list[Any], position: Any, /) -> Any:
    """The tensor at a position; negative ones count from the end."""
    return input_sequence[_place(ops, position, len(input_sequence), len(input_sequence) - 1)]


def _length_type(input_sequence: Value, /) -> TensorType:
    _elem(input_sequence)
    return TensorType(DType.Int64, Shape([]))


@primitive(since=11, infer=_length_type, types="? > int64")
def SequenceLength(ops: Any, input_sequence: list[Any], /) -> Any:
    """How many tensors a sequence has."""
    return ops.from_numpy(np.asarray(len(input_sequence), dtype=np.int64))


# ---------------------------------------------------------------------- splitting, joining


def _split_type(input: Value, split: Value | None = None, /, *, axis: int, keepdims: int) -> SequenceType:
    dims = input.tensor_type.shape
    if dims is None:
        return SequenceType(tensor_like(input, None))
    along = normalize_axis(axis, len(dims))
    if split is None:
        part = [1] if keepdims else []
    else:
        sizes = set(known_ints(split) or [None])
        # A single size need not divide the axis: then the last part is smaller.
        whole = len(sizes) == 1 and split.rank == 1
        part = [sizes.pop() if whole else None]
    return SequenceType(tensor_like(input, [*dims[:along], *part, *dims[along + 1 :]]))


def _split_needs(input: Value, split: Value | None = None, /, **_: Any) -> None:
    has_rank("split", split, 0, 1)


@primitive(since=24, infer=_split_type, requires=_split_needs)
def SplitToSequence(ops: Any, input: Any, split: Any = None, /, *, axis: int = 0, keepdims: int = 1) -> list[Any]:
    """Parts along an axis: of the sizes given, of one size, or one by one."""
    along = normalize_axis(axis, len(input.shape))
    length = input.shape[along]
    sizes = [1] * length
    if split is not None:
        given = ops.to_numpy(split)
        sizes = _chunks(length, int(given)) if given.ndim == 0 else given.tolist()
    if sum(sizes) != length or any(size < 0 for size in sizes):
        raise ShapeMismatchError(f"parts of sizes {sizes} do not add up to {length}, the size of axis {along}")
    parts: list[Any] = ops.split(input, sizes, along) if sizes else []
    return parts if keepdims or split is not None else [ops.squeeze(part, along) for part in parts]


def _chunks(length: int, size: int) -> list[int]:
    if size < 1:
        raise InputError(f"the size of a part must be positive, got {size}")
    return [min(size, length - i) for i in range(0, length, size)]


def _concat_type(input_sequence: Value, /, *, axis: int, new_axis: int) -> TensorType:
    elem = _elem(input_sequence)
    if not isinstance(elem, TensorType):
        raise UndeterminedError("the type of the elements is not known")
    if elem.shape is None:
        return elem
    dims = list(elem.shape)
    along = normalize_axis(axis, len(dims) + bool(new_axis))
    # How many there are is only known when running.
    dims[along : along + (not new_axis)] = [None]
    return TensorType(elem.dtype, Shape(dims))


@primitive(since=11, infer=_concat_type)
def ConcatFromSequence(ops: Any, input_sequence: list[Any], /, *, axis: int, new_axis: int = 0) -> Any:
    """The tensors joined along an axis, or stacked along a new one."""
    if not input_sequence:
        raise InputError("an empty sequence cannot be joined")
    rank = len(input_sequence[0].shape)
    if new_axis:
        return ops.stack(input_sequence, normalize_axis(axis, rank + 1))
    return ops.concatenate(input_sequence, normalize_axis(axis, rank))


# ---------------------------------------------------------------------- SequenceMap


def _map_type(input_sequence: Value, /, *additional_inputs: Value, body: Graph, captured: int) -> tuple[Value, ...]:
    given, captures = split_captures((input_sequence, *additional_inputs), captured)
    items = [Value(None, _elem(v)) if isinstance(v.type, SequenceType) else v for v in given]
    outputs = infer_body(body, [*items, *captures])
    return tuple(Value(None, _of(out.type)) for out in outputs)


@primitive(since=17, infer=_map_type, control=True)
def SequenceMap(
    interpreter: Any, input_sequence: list[Any], /, *additional_inputs: Any, body: Graph, captured: int = 0
) -> tuple[list[Any], ...]:
    """A graph applied to each element of a sequence; other sequences are taken along in step."""
    given, captures = split_captures((input_sequence, *additional_inputs), captured)
    sequences: list[list[Any]] = [v for v in given if isinstance(v, list)]
    lengths = {len(v) for v in sequences}
    if len(lengths) != 1:
        raise InputError(f"the sequences have different lengths: {sorted(lengths)}")
    results: tuple[list[Any], ...] = tuple([] for _ in body.outputs)
    for i in range(len(input_sequence)):
        items: list[Any] = [v[i] if isinstance(v, list) else v for v in given]
        for column, value in zip(results, interpreter.run(body, [*items, *captures]), strict=True):
            column.append(value)
    return results


# ---------------------------------------------------------------------- optionals


def _optional_type(input: Value | None = None, /, *, type: ValueType | None) -> Value:
    elem = type if input is None else input.type
    return Value(None, None if elem is None else OptionalType(elem))


@primitive(since=28, infer=_optional_type)
def Optional(_ops: Any, input: Any = None, /, *, type: ValueType | None = None) -> Any:
    """The value as an optional; without one, nothing of the given type."""
    return input


def _has_element_type(input: Value | None = None, /) -> TensorType:
    return TensorType(DType.Bool, Shape([]))


@primitive(since=28, infer=_has_element_type, types="? > bool")
def OptionalHasElement(ops: Any, input: Any = None, /) -> Any:
    """True when there is a value."""
    return ops.from_numpy(np.asarray(input is not None))


def _get_element_type(input: Value, /) -> Value:
    return Value(None, input.type.elem if isinstance(input.type, OptionalType) else input.type)


@primitive(since=28, infer=_get_element_type)
def OptionalGetElement(_ops: Any, input: Any, /) -> Any:
    """The value an optional holds."""
    if input is None:
        raise InputError("the optional is empty")
    return input
