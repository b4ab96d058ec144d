"""Complex numbers inside a graph as pairs of real ones: ONNX has DFT on pairs, and no complex arithmetic.

Each value of a complex type becomes one of its parts' type with a last axis of two, each node on such values what it
means on pairs.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pyflame_rt.graph import DType, Graph, Node, Shape, Tensor, TensorType
from pyflame_rt.graph.errors import UndeterminedError, UnsupportedOperatorError
from pyflame_rt.ops.core.evaluate import where
from pyflame_rt.ops.core.registry import Op, find_op
from pyflame_rt.ops.core.type_rules import normalize_axes, normalize_axis, static_size
from pyflame_rt.ops.core.value import Value, constant
from pyflame_rt.ops.onnx.arithmetic import Add, Div, Mul, Neg, Sub
from pyflame_rt.ops.onnx.cast import Cast, Identity
from pyflame_rt.ops.onnx.index import Gather, ScatterND
from pyflame_rt.ops.onnx.logic import Where
from pyflame_rt.ops.onnx.math import Cos, Exp, Sin
from pyflame_rt.ops.onnx.matmul import Einsum, MatMul
from pyflame_rt.ops.onnx.reduce import ReduceL2, ReduceMean, ReduceSum
from pyflame_rt.ops.onnx.shape import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from pyflame_rt.ops.onnx.signal import DFT
from pyflame_rt.ops.onnx.slicing import Concat, Pad, Slice
from pyflame_rt.ops.pyflame.complex_numbers import ComplexAbs, Conj, ViewAsComplex, ViewAsReal, part_of
from pyflame_rt.ops.pyflame.fourier import FFT, IRFFT, RFFT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.ops.core.inline import Body

    Opener: TypeAlias = Callable[[Node, Op, list[Value | None]], Body]

__all__ = ["has_complex", "may_hold_complex", "without_complex"]


def without_complex(graph: Graph, opened: Opener) -> Graph:
    """The graph with pairs in place of complex numbers, types of all values being known; changed in place.

    Args:
        graph: what is exported.
        opened: gives the body of an operator in place of a node, under names nobody uses.

    Raises:
        UnsupportedOperatorError: A node, an input or an output has no such form; it is named.
    """
    for info in (*graph.inputs, *graph.outputs):
        if _is_complex(info.type):
            raise UnsupportedOperatorError(
                f"{info.name!r} is complex, which ONNX files have no arithmetic for; give and take pairs of real "
                "numbers instead, through view_as_complex and view_as_real"
            )
    pending, done = deque(graph.topological_sort()), []
    while pending:
        node = pending.popleft()
        if any(_is_complex(_type(graph, name)) for name in (*node.inputs, *node.outputs)):
            made, still = _on_pairs(graph, node, opened)
            done += made
            pending.extendleft(reversed(still))
        else:
            done.append(node)
    graph.nodes = done
    _retype(graph)
    return graph


def _retype(graph: Graph) -> None:
    """What was complex is pairs."""
    for name, tensor in graph.initializers.items():
        if tensor.dtype.is_complex:
            graph.initializers[name] = Tensor(_contents(graph, name, True))
    for name, kind in graph.types.items():
        if isinstance(kind, TensorType) and kind.dtype.is_complex:
            graph.types[name] = TensorType(part_of(kind.dtype), None if kind.shape is None else Shape([*kind.shape, 2]))


# What makes complex numbers of others; besides, they come from inputs and constants.
_SOURCES = frozenset(op.full_name for op in (ViewAsComplex, RFFT, Cast))


def may_hold_complex(graph: Graph) -> bool:
    """Whether complex numbers come into a graph, or are made in it, as far as that is known without inferring types."""
    kinds = [*(info.type for info in (*graph.inputs, *graph.outputs)), *graph.types.values()]
    constant = any(tensor.dtype.is_complex for tensor in graph.initializers.values())
    if constant or any(map(_is_complex, kinds)):
        return True
    return any(node.full_name in _SOURCES and _makes_complex(node) for node in graph.nodes)


def has_complex(graph: Graph) -> bool:
    """Whether a node of a typed graph computes with complex numbers; constants and moves alone are ONNX's own."""

    def moves(node: Node) -> bool:
        op = find_op(node.op_type, node.domain)
        return op is not None and op.kind == "move" and not (op.name == Cast.name and not node.domain)

    touched = (node for node in graph.nodes if not moves(node))
    return any(_is_complex(_type(graph, name)) for node in touched for name in (*node.inputs, *node.outputs))


def _makes_complex(node: Node) -> bool:
    to = node.attributes.get("to")
    return node.op_type != Cast.name or (isinstance(to, int) and DType.from_onnx(to).is_complex)


def _type(graph: Graph, name: str) -> Any:
    return graph.value_type(name) if name else None


def _is_complex(kind: Any) -> bool:
    return isinstance(kind, TensorType) and kind.dtype.is_complex


def _as_pairs(kind: Any, node: Node) -> TensorType:
    if kind.shape is None:
        raise _refusal(node, "the rank of a complex value is only known when running")
    return TensorType(part_of(kind.dtype), Shape([*kind.shape, 2]))


def _refusal(node: Node, reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(f"{where(node)} cannot be exported to ONNX: {reason}")


def _on_pairs(graph: Graph, node: Node, opened: Opener) -> tuple[list[Node], list[Node]]:
    """The nodes that do a node's work on pairs, and those of its body where that is still to be looked at."""
    op, meaning = find_op(node.op_type, node.domain), MEANINGS.get(node.full_name)
    types = [_type(graph, name) for name in node.inputs]
    if op is None or (meaning is None and not op.composite):
        raise _refusal(node, "ONNX has no complex numbers, and it has no form on pairs of real ones")
    flags = [_is_complex(kind) for kind in types]
    pairs = [meaning is not None and flag for flag in flags]
    known = [_contents(graph, name, pair) for name, pair in zip(node.inputs, pairs, strict=True)]
    values = [
        Value(name, _as_pairs(kind, node) if pair else kind, array) if name else None
        for name, kind, pair, array in zip(node.inputs, types, pairs, known, strict=True)
    ]
    body = (
        op if meaning is None else Op(op.name, op.domain, op.since, _bound(meaning, flags), True, schema=op.signature)
    )
    try:
        made = opened(node, body, values)
    except UndeterminedError as error:
        raise _refusal(node, f"{error}") from error
    graph.initializers.update(made.constants)
    if meaning is None:
        graph.types = {**made.types, **graph.types}
        return [], made.nodes
    graph.types = {**graph.types, **{k: v for k, v in made.types.items() if k not in node.outputs}}
    return made.nodes, []


def _contents(graph: Graph, name: str, pairs: bool) -> Any:
    """What a constant holds, None for what is computed."""
    tensor = graph.initializers.get(name)
    array = None if tensor is None else np.asarray(tensor.raw())
    return np.stack([np.real(array), np.imag(array)], -1) if pairs and array is not None else array


def _bound(meaning: Callable[..., Any], flags: list[bool]) -> Callable[..., Any]:
    return lambda *values, **attributes: meaning(flags, *values, **attributes)


# ------------------------------------------------------------------ parts


def _parts(x: Value) -> tuple[Value, Value]:
    first, second = (Gather(x, constant(i), axis=-1) for i in (0, 1))
    return first, second


def _pair(first: Value, second: Value) -> Value:
    return Concat(Unsqueeze(first, [-1]), Unsqueeze(second, [-1]), axis=-1)


def _plain(op: Op) -> Callable[..., Any]:
    """An operator that does on pairs what it does on numbers."""
    return lambda _, *values, **attributes: op(*values, **attributes)


def _shift(x: Value, axis: int) -> int:
    """An axis of the numbers, counted from the first."""
    return normalize_axis(axis, x.rank - 1)


def _axes(x: Value, axes: Value | None) -> list[int]:
    return list(range(x.rank - 1)) if axes is None else normalize_axes(axes.ints(), x.rank - 1)


# ------------------------------------------------------------------ moves


def _cast(flags: list[bool], x: Value, **attributes: Any) -> Value:
    target = DType.from_onnx(attributes["to"])
    if flags[0] and target.is_complex:
        return Cast(x, to=part_of(target))
    if flags[0]:
        return Cast(_parts(x)[0], to=target)
    made = Cast(x, to=part_of(target))
    return _pair(made, made * 0.0)


def _reshape(_: Any, x: Value, shape: Value, **attributes: Any) -> Value:
    return Reshape(x, [*shape.ints(), 2], **attributes)


def _expand(_: Any, x: Value, shape: Value) -> Value:
    sizes = shape.ints()
    lead = len(sizes) - (x.rank - 1)
    return Expand(Reshape(x, [*[1] * max(lead, 0), *x.shape]), [*sizes, 2])


def _transpose(_: Any, x: Value, *, perm: list[int] | None = None) -> Value:
    rank = x.rank - 1
    return Transpose(x, perm=[*(range(rank)[::-1] if perm is None else perm), rank])


def _unsqueeze(_: Any, x: Value, axes: Value) -> Value:
    return Unsqueeze(x, normalize_axes(axes.ints(), x.rank - 1 + len(axes.ints())))


def _squeeze(_: Any, x: Value, axes: Value | None = None) -> Value:
    gone = [i for i, d in enumerate(x.shape[:-1]) if d == 1] if axes is None else _axes(x, axes)
    return Squeeze(x, gone)


def _concat(_: Any, *values: Value, axis: int) -> Value:
    return Concat(*values, axis=_shift(values[0], axis))


def _gather(_: Any, x: Value, indices: Value, *, axis: int) -> Value:
    return Gather(x, indices, axis=_shift(x, axis))


def _slice(
    _: Any, x: Value, starts: Value, ends: Value, axes: Value | None = None, steps: Value | None = None
) -> Value:
    places = list(range(len(starts.ints()))) if axes is None else _axes(x, axes)
    return Slice(x, starts, ends, places, steps)


def _pad(_: Any, x: Value, pads: Value, value: Value | None = None, axes: Value | None = None, *, mode: str) -> Value:
    if axes is not None or (value is not None and (value.known is None or np.any(value.known))):
        raise UndeterminedError("complex numbers are filled up with zeros, on all axes")
    sizes, rank = pads.ints(), x.rank - 1
    return Pad(x, [*sizes[:rank], 0, *sizes[rank:], 0], mode=mode)


def _where(_: Any, condition: Value, first: Value, second: Value) -> Value:
    return Where(Unsqueeze(condition, [-1]), first, second)


def _reduced(op: Op) -> Callable[..., Any]:
    def meaning(_: Any, x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int) -> Value:
        if noop_with_empty_axes and (axes is None or not axes.ints()):
            return Identity(x)
        return op(x, _axes(x, axes if axes is not None and axes.ints() else None), keepdims=keepdims)

    return meaning


# ------------------------------------------------------------------ arithmetic


def _mul(_: Any, x: Value, y: Value) -> Value:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _pair(a * c - b * d, a * d + b * c)


def _div(_: Any, x: Value, y: Value) -> Value:
    (a, b), (c, d) = _parts(x), _parts(y)
    size = c * c + d * d
    return _pair((a * c + b * d) / size, (b * c - a * d) / size)


def _matmul(_: Any, x: Value, y: Value) -> Value:
    (a, b), (c, d) = _parts(x), _parts(y)
    return _pair(MatMul(a, c) - MatMul(b, d), MatMul(a, d) + MatMul(b, c))


def _einsum(_: Any, *values: Value, equation: str) -> Value:
    if len(values) == 1:
        return _pair(*(Einsum(part, equation=equation) for part in _parts(values[0])))
    if len(values) != 2:
        raise UndeterminedError("sums of products of more than two complex tensors have no form on pairs")
    (a, b), (c, d) = (_parts(v) for v in values)

    def product(x: Value, y: Value) -> Value:
        return Einsum(x, y, equation=equation)

    return _pair(product(a, c) - product(b, d), product(a, d) + product(b, c))


def _conj(_: Any, x: Value) -> Value:
    first, second = _parts(x)
    return _pair(first, -second)


def _exp(_: Any, x: Value) -> Value:
    first, second = _parts(x)
    size = Exp(first)
    return _pair(size * Cos(second), size * Sin(second))


# ------------------------------------------------------------------ transforms


def _scaled(x: Value, count: int, *, inverse: bool, norm: str) -> Value:
    """What DFT gives (1 forwards, 1/count back) with the factor that was asked for."""
    want = 1 / math.sqrt(count) if norm == "ortho" else 1 / count if (norm == "backward") == inverse else 1.0
    factor = want * count if inverse else want
    return x if factor == 1 else x * factor


def _fft(_: Any, x: Value, *, axes: list[int], inverse: int, norm: str) -> Value:
    count, result = 1, x
    for axis in axes:
        place = _shift(x, axis)
        count *= static_size(x.shape[place])
        result = DFT(result, None, constant(place), inverse=inverse)
    return _scaled(result, count, inverse=bool(inverse), norm=norm)


def _rfft(_: Any, x: Value, *, axis: int, norm: str) -> Value:
    place = normalize_axis(axis, x.rank)
    half = DFT(Unsqueeze(x, [-1]), None, constant(place), onesided=1)
    return _scaled(half, static_size(x.shape[place]), inverse=False, norm=norm)


def _irfft(_: Any, x: Value, *, n: int, axis: int, norm: str) -> Value:
    """Through the whole spectrum, whose other half is the mirrored conjugate: not every runtime knows the short way."""
    place, count = _shift(x, axis), static_size(n)
    mirrored = list(range((count - 1) // 2, 0, -1))
    whole = Concat(x, _conj(None, Gather(x, mirrored, axis=place)), axis=place) if mirrored else x
    # Imaginary parts of what is its own mirror image do not count: the real part of the result is without them.
    return _scaled(_parts(DFT(whole, None, constant(place), inverse=1))[0], count, inverse=True, norm=norm)


MEANINGS: dict[str, Callable[..., Any]] = {
    Add.full_name: _plain(Add), Sub.full_name: _plain(Sub), Neg.full_name: _plain(Neg), Mul.full_name: _mul,
    Div.full_name: _div, MatMul.full_name: _matmul, Einsum.full_name: _einsum, Exp.full_name: _exp,
    Identity.full_name: _plain(Identity), ScatterND.full_name: _plain(ScatterND), Cast.full_name: _cast,
    Reshape.full_name: _reshape, Expand.full_name: _expand, Transpose.full_name: _transpose,
    Unsqueeze.full_name: _unsqueeze, Squeeze.full_name: _squeeze, Concat.full_name: _concat, Gather.full_name: _gather,
    Slice.full_name: _slice, Pad.full_name: _pad, Where.full_name: _where, ReduceSum.full_name: _reduced(ReduceSum),
    ReduceMean.full_name: _reduced(ReduceMean), Conj.full_name: _conj,
    ViewAsReal.full_name: _plain(Identity), ViewAsComplex.full_name: _plain(Identity),
    ComplexAbs.full_name: lambda _, x: ReduceL2(x, [-1], keepdims=0),
    FFT.full_name: _fft, RFFT.full_name: _rfft, IRFFT.full_name: _irfft,
}  # fmt: skip
