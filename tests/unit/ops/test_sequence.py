"""Sequences and optionals: positions, types, what empty ones do, on every library."""

import numpy as np
import pytest

from pyflame_rt.graph import (
    AnyType,
    DType,
    Graph,
    Node,
    OptionalType,
    SequenceType,
    Shape,
    TensorInfo,
    TensorType,
    symbol,
)
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.ops import Context, Value, evaluate, get_op
from pyflame_rt.ops.core.evaluate import to_host, to_library
from pyflame_rt.ops.core.trace import infer_outputs

LIBRARIES = ("numpy", "torch", "mlx")
N = symbol("N")
ITEMS = [np.float32([1, 2]), np.float32([3]), np.zeros(0, np.float32)]
FLOATS = TensorType(DType.Float32, Shape([N, 2]))


def run(op, *arrays, library="numpy", outputs=1, **attributes):
    context = Context.of(library)
    names = [f"i{i}" for i in range(len(arrays))]
    moved = [to_library(a, context.library) for a in arrays]
    made = evaluate(Node("n", op, names, [f"o{i}" for i in range(outputs)], attributes), moved, context)
    results = [to_host(r, context.library) for r in made]
    return results[0] if outputs == 1 else results


def infer(op, *kinds, known=None, **attributes):
    found = get_op(op)
    values = [None if k is None else Value("v", k) for k in kinds]
    return [v.type for v in infer_outputs(found, values, found.signature.bind(attributes, op))]


def lists(sequence):
    return [a.tolist() for a in sequence]


@pytest.mark.parametrize("library", LIBRARIES)
def test_building_and_reading(library):
    made = run("SequenceConstruct", *ITEMS, library=library)
    assert lists(made) == [[1, 2], [3], []]
    assert run("SequenceAt", made, np.array(-2), library=library).tolist() == [3]
    assert run("SequenceLength", made, library=library).tolist() == 3
    assert lists(run("SequenceErase", made, library=library)) == [[1, 2], [3]]
    assert lists(run("SequenceErase", made, np.array(0), library=library)) == [[3], []]
    assert lists(run("SequenceInsert", made, ITEMS[1], np.array(-1, np.int32), library=library)) == [
        [1, 2],
        [3],
        [3],
        [],
    ]
    assert lists(run("SequenceInsert", made, ITEMS[1], library=library)) == [[1, 2], [3], [], [3]]
    assert len(made) == 3
    assert run("SequenceEmpty", library=library) == []


def test_sequences_of_strings_stay_on_the_host():
    words = [np.array(["a"], object), np.array(["b", "c"], object)]
    assert run("ConcatFromSequence", words, axis=0, library="torch").tolist() == ["a", "b", "c"]
    assert run("SequenceAt", words, np.array(1), library="mlx").tolist() == ["b", "c"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_splitting_and_joining(library):
    x = np.arange(10, dtype=np.int32).reshape(2, 5)
    assert [p.shape for p in run("SplitToSequence", x, np.array(2), axis=1, library=library)] == [
        (2, 2),
        (2, 2),
        (2, 1),
    ]
    assert [p.shape for p in run("SplitToSequence", x, np.array([4, 1]), axis=-1, library=library)] == [(2, 4), (2, 1)]
    rows = run("SplitToSequence", x, keepdims=0, library=library)
    assert [p.shape for p in rows] == [(5,), (5,)]
    # With sizes given, keepdims is ignored.
    assert [p.shape for p in run("SplitToSequence", x, np.array(1), keepdims=0, library=library)] == [(1, 5)] * 2
    np.testing.assert_array_equal(run("ConcatFromSequence", rows, axis=-1, new_axis=1, library=library), x.T)
    assert run("SplitToSequence", x[:0], library=library) == []


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "message"),
    [
        ("SequenceAt", [ITEMS, np.array(3)], {}, "position 3 is out of range for a sequence of 3"),
        ("SequenceInsert", [ITEMS, ITEMS[0], np.array(4)], {}, "out of range"),
        ("SequenceErase", [[]], {}, "empty"),
        ("ConcatFromSequence", [[]], {"axis": 0}, "empty sequence"),
        ("SplitToSequence", [np.zeros(4), np.array(0)], {}, "must be positive"),
        ("SplitToSequence", [np.zeros(4), np.array([1, 2])], {}, "do not add up to 4"),
        ("OptionalGetElement", [None], {}, "optional is empty"),
    ],
)
def test_errors_say_what_came(op, arrays, attributes, message):
    with pytest.raises(PyFlameRTError, match=message):
        run(op, *arrays, **attributes)


def test_optionals():
    assert run("Optional", ITEMS[0]) is ITEMS[0]
    assert run("Optional", type=FLOATS) is None
    for library in LIBRARIES:
        assert run("OptionalHasElement", ITEMS, library=library).tolist() is True
        assert run("OptionalHasElement", None, library=library).tolist() is False
        assert run("OptionalHasElement", library=library).tolist() is False
        assert lists(run("OptionalGetElement", ITEMS, library=library)) == lists(ITEMS)


def test_types():
    other = TensorType(DType.Float32, Shape([3, 2]))
    sequence = SequenceType(FLOATS)
    assert infer("SequenceConstruct", FLOATS, other) == [SequenceType(TensorType(DType.Float32, Shape([None, 2])))]
    assert infer("SequenceConstruct", FLOATS, TensorType(DType.Int64)) == [SequenceType(AnyType())]
    assert infer("SequenceEmpty", dtype=DType.Int64.onnx) == [SequenceType(TensorType(DType.Int64))]
    assert infer("SequenceAt", sequence, TensorType(DType.Int64, Shape([]))) == [FLOATS]
    assert infer("SequenceInsert", sequence, FLOATS) == [sequence]
    assert infer("SequenceErase", sequence) == [sequence]
    assert infer("ConcatFromSequence", sequence, axis=0) == [TensorType(DType.Float32, Shape([None, 2]))]
    stacked = TensorType(DType.Float32, Shape([N, None, 2]))
    assert infer("ConcatFromSequence", sequence, axis=1, new_axis=1) == [stacked]
    assert infer("SplitToSequence", FLOATS, axis=1, keepdims=0) == [SequenceType(TensorType(DType.Float32, Shape([N])))]
    assert infer("Optional", FLOATS) == [OptionalType(FLOATS)]
    assert infer("Optional", type=sequence) == [OptionalType(sequence)]
    assert infer("OptionalGetElement", OptionalType(sequence)) == [sequence]
    assert infer("OptionalGetElement", FLOATS) == [FLOATS]
    assert infer("OptionalHasElement", OptionalType(FLOATS)) == [TensorType(DType.Bool, Shape([]))]
    with pytest.raises(PyFlameRTError, match="a sequence is needed"):
        infer("SequenceLength", FLOATS)


def scale_body():
    body = Graph("body")
    for name in ("x", "by", "outer"):
        body.add_input(TensorInfo(name, type=AnyType()))
    body.add_node("mul", "Mul", ["x", "by"], ["scaled"])
    body.add_node("add", "Add", ["scaled", "outer"], ["y"])
    body.add_node("shape", "Shape", ["x"], ["s"])
    for name in ("y", "s"):
        body.add_output(TensorInfo(name, type=AnyType()))
    return body


@pytest.mark.parametrize("library", LIBRARIES)
def test_sequence_map_takes_sequences_in_step_and_captures(library):
    by = [np.float32(2), np.float32(3), np.float32(4)]
    arrays = [ITEMS, [np.asarray(b) for b in by], np.float32([10])]
    made, shapes = run("SequenceMap", *arrays, library=library, outputs=2, body=scale_body(), captured=1)
    assert lists(made) == [[12, 14], [19], []]
    assert lists(shapes) == [[2], [1], [0]]
    assert run("SequenceMap", [], [], np.float32([10]), library=library, outputs=2, body=scale_body(), captured=1) == [
        [],
        [],
    ]


def test_sequence_map_types_and_errors():
    row = TensorType(DType.Float32, Shape([N]))
    scalar = TensorType(DType.Float32, Shape([]))
    kinds = infer("SequenceMap", SequenceType(row), scalar, scalar, body=scale_body(), captured=1)
    assert kinds == [SequenceType(row), SequenceType(TensorType(DType.Int64, Shape([1])))]
    with pytest.raises(PyFlameRTError, match="different lengths"):
        run("SequenceMap", ITEMS, ITEMS[:1], np.float32([1]), outputs=2, body=scale_body(), captured=1)
