"""Control flow: If, Loop and Scan.

What a subgraph reads from outside arrives as explicit inputs: the last ``captured`` inputs of the
node, which are also the last inputs of every subgraph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pyflame_rt.graph import DimLike, DType, Graph, Node, Shape, TensorType, ValueType
from pyflame_rt.graph.budget import check_memory
from pyflame_rt.graph.errors import InputError, InvalidModelError, ShapeMismatchError
from pyflame_rt.graph.graph import node_subgraphs
from pyflame_rt.ops.core.evaluate import Interpreter, describe, run_op, to_host, to_library
from pyflame_rt.ops.core.guards import Within, at_least, has_shape, size_at
from pyflame_rt.ops.core.registry import get_op, primitive
from pyflame_rt.ops.core.size_arithmetic import join_types
from pyflame_rt.ops.core.type_rules import normalize_axis
from pyflame_rt.ops.core.upgrade import Upgrade, upgrade
from pyflame_rt.ops.core.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["BatchedScan", "If", "Loop", "Scan", "infer_body", "split_captures"]

T = TypeVar("T")
_SCALAR_INDEX = TensorType(DType.Int64, Shape([]))
_SCALAR_BOOL = TensorType(DType.Bool, Shape([]))
# Sizes widen to unknown one at a time at worst; then ranks do.
_MAX_ROUNDS = 12


def split_captures(values: Sequence[T], captured: int) -> tuple[list[T], list[T]]:
    """The formal inputs of a node, and what its subgraphs capture."""
    cut = len(values) - captured
    return list(values[:cut]), list(values[cut:])


# ---------------------------------------------------------------------- inferring subgraphs


def infer_body(graph: Graph, inputs: Sequence[Value | None]) -> list[Value]:
    """Types of a subgraph's outputs; the subgraph keeps the types it was given here."""
    from pyflame_rt.ops.core.inference import infer_graph

    return infer_graph(graph, inputs)


def _private(graph: Graph) -> Graph:
    """A copy whose inferred types nobody else sees, nested subgraphs included."""
    twin = graph.copy()
    twin.nodes = [_private_node(node) if any(True for _ in node_subgraphs(node)) else node for node in twin.nodes]
    return twin


def _private_node(node: Node) -> Node:
    copies = {name: _private(v) if isinstance(v, Graph) else v for name, v in node.attributes.items()}
    return node.replace(attributes=copies)


def _steady_types(
    body: Graph, before: list[Value | None], carried: Sequence[Value | None], after: Sequence[Value | None], skip: int
) -> tuple[list[ValueType | None], list[Value]]:
    """Types of carried values that hold before and after every turn; and the body's outputs."""
    kinds: list[ValueType | None] = [None if v is None else v.type for v in carried]
    for _ in range(_MAX_ROUNDS):
        inputs = [*before, *[Value(None, kind) for kind in kinds], *after]
        produced = infer_body(_private(body), inputs)[skip : skip + len(kinds)]
        joined = [join_types(kind, out.type) for kind, out in zip(kinds, produced, strict=True)]
        if joined == kinds:
            break
        kinds = joined
    else:
        kinds = [TensorType(k.dtype) if isinstance(k, TensorType) else None for k in kinds]
    return kinds, infer_body(body, [*before, *[Value(None, kind) for kind in kinds], *after])


def _stacked(elem: ValueType | None, count: DimLike, axis: int = 0) -> Value:
    """The type of scan outputs from that of one of them."""
    if not isinstance(elem, TensorType):
        return Value(None, None)
    if elem.shape is None:
        return Value(None, TensorType(elem.dtype))
    dims = list(elem.shape)
    dims.insert(normalize_axis(axis, len(dims) + 1), count)
    return Value(None, TensorType(elem.dtype, Shape(dims)))


# ---------------------------------------------------------------------- running helpers


def _apply(interpreter: Interpreter, name: str, arrays: Sequence[Any], **attributes: Any) -> Any:
    """One operator on arrays, on the host where the library must."""
    op = get_op(name)
    return run_op(op, arrays, op.signature.bind(attributes, name), interpreter.context)[0]


def _truth(interpreter: Interpreter, condition: Any) -> bool:
    array = np.asarray(to_host(condition, interpreter.ops))
    if array.size != 1:
        raise ShapeMismatchError(f"a condition must be one element, got shape {Shape(array.shape)}")
    return bool(array.reshape(()))


def _stack(
    interpreter: Interpreter, items: list[Any], axis: int, body: Graph, inputs: Sequence[Any], output: int
) -> Any:
    """Scan outputs joined along a new axis; of no turns, empty with the right type."""
    if items:
        return _apply(interpreter, "ConcatFromSequence", [items], axis=axis, new_axis=1)
    kinds = [Value(None, describe(array, interpreter.ops)) for array in inputs]
    elem = infer_body(_private(body), kinds)[output].type
    if not isinstance(elem, TensorType):
        declared = body.outputs[output].type
        elem = declared if isinstance(declared, TensorType) else TensorType(DType.Float32)
    sizes = [d if isinstance(d, int) else 0 for d in elem.shape or ()]
    sizes.insert(normalize_axis(axis, len(sizes) + 1), 0)
    return to_library(np.zeros(sizes, dtype=elem.dtype.numpy), interpreter.ops)


def _like_declared(body: Graph, index: int, value: Any) -> np.ndarray[Any, Any]:
    """A scalar, or one element in an axis where the body declares its input so."""
    kind = body.inputs[index].type
    one = isinstance(kind, TensorType) and kind.shape is not None and len(kind.shape) == 1
    return np.asarray(value).reshape((1,) if one else ())


def _check_outputs(body: Graph, least: int, what: str) -> None:
    if len(body.outputs) < least:
        raise InvalidModelError(f"the graph {body.name!r} gives {len(body.outputs)} outputs, {least} are {what}")


# ---------------------------------------------------------------------- If


def _if_types(
    cond: Value, /, *captures: Value, then_branch: Graph, else_branch: Graph, captured: int
) -> tuple[Value, ...]:
    yes, no = (infer_body(branch, captures) for branch in (then_branch, else_branch))
    if cond.known is not None and cond.known.size == 1:
        return tuple(yes if cond.known.reshape(())[()] else no)
    return tuple(Value(None, join_types(a.type, b.type)) for a, b in zip(yes, no, strict=True))


@primitive(since=25, infer=_if_types, control=True, known=(0,))
def If(
    interpreter: Interpreter, cond: Any, /, *captures: Any, then_branch: Graph, else_branch: Graph, captured: int = 0
) -> tuple[Any, ...]:
    """The outputs of one of two graphs."""
    return tuple(interpreter.run(then_branch if _truth(interpreter, cond) else else_branch, captures))


# ---------------------------------------------------------------------- Loop

# Bytes of an array besides its elements.
_PER_VALUE = 128


def _loop_types(
    M: Value | None = None,
    cond: Value | None = None,
    /,
    *v_initial: Value | None,
    body: Graph,
    captured: int,
) -> tuple[Value, ...]:
    carried, captures = split_captures(v_initial, captured)
    always = cond is None or (cond.known is not None and bool(cond.known.all()))
    going = Value(None, _SCALAR_BOOL, np.asarray(True) if always else None)
    kinds, outputs = _steady_types(body, [Value(None, _SCALAR_INDEX), going], carried, captures, 1)
    stays = cond is None or (always and outputs[0].known is not None and bool(outputs[0].known.all()))
    count = None
    if stays and M is not None and M.known is not None:
        count = M.known.ravel().tolist()[0]
        count = max(0, count) if isinstance(count, int) else count
    scans = [_stacked(out.type, count) for out in outputs[1 + len(carried) :]]
    return (*[Value(None, kind) for kind in kinds], *scans)


@primitive(since=25, infer=_loop_types, control=True)
def Loop(
    interpreter: Interpreter, M: Any = None, cond: Any = None, /, *v_initial: Any, body: Graph, captured: int = 0
) -> tuple[Any, ...]:
    """A graph run again and again on what it carries; further outputs are collected."""
    carried, captures = split_captures(v_initial, captured)
    lib, count = interpreter.ops, len(carried)
    _check_outputs(body, 1 + count, "the condition and what it carries")
    limit = None if M is None else int(np.asarray(to_host(M, lib)).item())
    flag = to_library(_like_declared(body, 1, True), lib) if cond is None else cond
    going, turn = _truth(interpreter, flag), 0
    scans: list[list[Any]] = [[] for _ in body.outputs[1 + count :]]
    held = 0  # a loop may go on for ever: what it keeps is limited
    while going and (limit is None or turn < limit):
        number = to_library(_like_declared(body, 0, np.int64(turn)), lib)
        flag, *results = interpreter.run(body, [number, flag, *carried, *captures])
        carried = results[:count]
        for items, value in zip(scans, results[count:], strict=True):
            items.append(value)
            held += _PER_VALUE + getattr(value, "nbytes", 0)
        check_memory(f"what {turn + 1} turns have collected", held)
        # With a trip count and no condition given, the body's condition is ignored.
        going = _truth(interpreter, flag) if cond is not None or limit is None else True
        turn += 1
    first = [to_library(_like_declared(body, 0, np.int64(0)), lib), flag, *carried, *captures]
    collected = [_stack(interpreter, items, 0, body, first, 1 + count + i) for i, items in enumerate(scans)]
    return (*carried, *collected)


# ---------------------------------------------------------------------- Scan


def _padded(values: Sequence[int] | None, count: int) -> list[int]:
    """An attribute with one number per scan input or output, zeros by default."""
    if values is not None and len(values) != count:
        raise InputError(f"{list(values)} must be {count} numbers")
    return [0] * count if values is None else list(values)


def _element(v: Value, axis: int) -> tuple[Value, DimLike]:
    kind = v.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return Value(None, TensorType(kind.dtype) if isinstance(kind, TensorType) else None), None
    dims = list(kind.shape)
    count = dims.pop(normalize_axis(axis, len(dims)))
    return Value(None, TensorType(kind.dtype, Shape(dims))), count


def _scan_types(
    *inputs: Value,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None,
    scan_output_axes: list[int] | None,
    captured: int,
    **_: Any,
) -> tuple[Value, ...]:
    given, captures = split_captures(inputs, captured)
    states, scanned = split_captures(given, num_scan_inputs)
    axes = _padded(scan_input_axes, num_scan_inputs)
    elements = [_element(v, axis) for v, axis in zip(scanned, axes, strict=True)]
    kinds, outputs = _steady_types(body, [], states, [*[v for v, _ in elements], *captures], 0)
    count = next((n for _, n in elements if isinstance(n, int)), elements[0][1] if elements else None)
    rest = outputs[len(states) :]
    places = _padded(scan_output_axes, len(rest))
    stacked = [_stacked(out.type, count, axis) for out, axis in zip(rest, places, strict=True)]
    return (*[Value(None, kind) for kind in kinds], *stacked)


@primitive(since=25, infer=_scan_types, control=True)
def Scan(
    interpreter: Interpreter,
    /,
    *initial_state_and_scan_inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: list[int] | None = None,
    scan_input_directions: list[int] | None = None,
    scan_output_axes: list[int] | None = None,
    scan_output_directions: list[int] | None = None,
    captured: int = 0,
) -> tuple[Any, ...]:
    """A graph run on the slices of its scan inputs one after the other, carrying a state."""
    given, captures = split_captures(initial_state_and_scan_inputs, captured)
    states, scanned = split_captures(given, num_scan_inputs)
    axes, backwards = (_padded(v, num_scan_inputs) for v in (scan_input_axes, scan_input_directions))
    length = _scan_length(scanned, axes)
    count = len(states)
    _check_outputs(body, count, "its states")
    scans: list[list[Any]] = [[] for _ in body.outputs[count:]]
    for turn in range(length):
        slices = [
            _take(interpreter, x, length - 1 - turn if back else turn, axis)
            for x, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        results = interpreter.run(body, [*states, *slices, *captures])
        states = results[:count]
        for items, value in zip(scans, results[count:], strict=True):
            items.append(value)
    places, reversed_ = (_padded(v, len(scans)) for v in (scan_output_axes, scan_output_directions))
    first = [*states, *[_empty_slice(interpreter, x, axis) for x, axis in zip(scanned, axes, strict=True)], *captures]
    collected = [
        _stack(interpreter, items[::-1] if back else items, axis, body, first, count + i)
        for i, (items, axis, back) in enumerate(zip(scans, places, reversed_, strict=True))
    ]
    return (*states, *collected)


def _scan_length(scanned: Sequence[Any], axes: Sequence[int]) -> int:
    lengths = {x.shape[normalize_axis(axis, len(x.shape))] for x, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise ShapeMismatchError(f"the scan inputs have different lengths: {sorted(lengths)}")
    return lengths.pop()


def _take(interpreter: Interpreter, x: Any, place: int, axis: int) -> Any:
    return _apply(interpreter, "Gather", [x, to_library(np.asarray(place), interpreter.ops)], axis=axis)


def _empty_slice(interpreter: Interpreter, x: Any, axis: int) -> np.ndarray[Any, Any]:
    """A stand-in for a slice: only its type is looked at, when there were no turns."""
    kind = describe(x, interpreter.ops)
    assert isinstance(kind, TensorType)
    sizes = [d for i, d in enumerate(x.shape) if i != normalize_axis(axis, len(x.shape))]
    return np.broadcast_to(np.zeros((), dtype=kind.dtype.numpy), sizes)


# ---------------------------------------------------------------------- Scan as it was in opset 8


@upgrade("Scan", to=9)
def batches_were_dropped(node: Node, up: Upgrade) -> Node:
    """Version 8 ran over a batch, each entry with a length of its own."""
    return node.replace(op_type="BatchedScan", domain="pyflame")


def _batched_types(
    sequence_lens: Value | None, /, *inputs: Value, body: Graph, num_scan_inputs: int, captured: int, **_: Any
) -> tuple[Value, ...]:
    given, captures = split_captures(inputs, captured)
    entries = [_element(v, 0) for v in given]
    batch = next((n for _, n in entries if isinstance(n, int)), entries[0][1] if entries else None)
    inner = _scan_types(
        *[v for v, _ in entries],
        *captures,
        body=body,
        num_scan_inputs=num_scan_inputs,
        scan_input_axes=None,
        scan_output_axes=None,
        captured=captured,
    )
    return tuple(_stacked(v.type, batch) for v in inner)


def _batched_needs(
    sequence_lens: Value | None, /, *inputs: Value, body: Graph, num_scan_inputs: int, captured: int, **_: Any
) -> Iterator[Within]:
    given, _captures = split_captures(inputs, captured)
    if len(given) < max(num_scan_inputs, 1):
        raise InvalidModelError(f"{num_scan_inputs} inputs are to be scanned, {len(given)} are given")
    for i, scanned in enumerate(given[len(given) - num_scan_inputs :]):
        at_least(f"the rank of scan input {i}", scanned.rank, 2)
    if sequence_lens is not None:
        has_shape("sequence_lens", sequence_lens, [size_at(given[0], 0)], "batch")
        yield Within("sequence_lens", sequence_lens, 0, size_at(given[-1], 1))


@primitive(since=1, domain="pyflame", infer=_batched_types, requires=_batched_needs, control=True)
def BatchedScan(
    interpreter: Interpreter,
    sequence_lens: Any = None,
    /,
    *initial_state_and_scan_inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    directions: list[int] | None = None,
    captured: int = 0,
) -> tuple[Any, ...]:
    """Scan over each entry of a batch; outputs of short sequences are padded with zeros."""
    given, captures = split_captures(initial_state_and_scan_inputs, captured)
    batch, longest = given[0].shape[0], given[-1].shape[1]
    lengths = [longest] * batch if sequence_lens is None else to_host(sequence_lens, interpreter.ops).tolist()
    rows: list[list[Any]] = []
    for entry, length in enumerate(lengths):
        values = [_take(interpreter, x, entry, 0) for x in given]
        states, scanned = split_captures(values, num_scan_inputs)
        shorter = [_resize(interpreter, x, length - longest) for x in scanned]
        results = Scan.body(
            interpreter,
            *[*states, *shorter, *captures],
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
            captured=captured,
        )
        final, scans = results[: len(states)], results[len(states) :]
        rows.append([*final, *[_resize(interpreter, x, longest - length) for x in scans]])
    columns = [list(column) for column in zip(*rows, strict=True)]
    return tuple(_apply(interpreter, "ConcatFromSequence", [column], axis=0, new_axis=1) for column in columns)


def _resize(interpreter: Interpreter, x: Any, by: int) -> Any:
    """Longer or shorter by some entries at the end of axis 0."""
    if by == 0:
        return x
    pads = [0] * (2 * len(x.shape))
    pads[len(x.shape)] = by
    return _apply(interpreter, "Pad", [x, to_library(np.asarray(pads, dtype=np.int64), interpreter.ops)])
