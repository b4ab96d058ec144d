"""Every rule on its own: what it makes, and that answers stay what they were, at the edges of the types too."""

import numpy as np
import pytest

from pyflame_rt import opt
from pyflame_rt.graph import DType, Graph
from pyflame_rt.opt.editor import Editor
from pyflame_rt.opt.rule import apply_rules
from pyflame_rt.opt.verification import answers, differences
from tests.unit.opt.random_graphs import values

R2, FACTOR = np.float32(2.0**0.5), np.float32((2 / np.pi) ** 0.5)
AXES, AXIS = np.array([-1]), np.array([-2])
SCALE, SHIFT = np.float32([1.5, -0.5, 2.0, 0.25]), np.float32([0.5, 1.0, -1.0, 0.0])
HALF, ONE, CUBE = np.float32(0.5), np.float32(1.0), np.float32(0.044715)
STATS = [np.float32([0.5, 2.0]), np.float32([0.1, -0.1]), np.float32([0.2, 0.3]), np.float32([1.1, 0.9])]


def const(*arrays):
    return [np.asarray(a) for a in arrays]


class Case:
    """Nodes as (operator, inputs, output, attributes); arrays among the inputs are constants."""

    def __init__(self, nodes, makes, shape=(3, 4), dtype=np.float32, *, inputs=("x",)):
        self.nodes, self.makes, self.shape, self.dtype, self.inputs = nodes, makes, shape, dtype, inputs

    def graph(self):
        graph = Graph("case")
        for name in self.inputs:
            graph.add_input(name, list(self.shape), DType.of(np.dtype(self.dtype)))
        for i, (op, given, made, *attributes) in enumerate(self.nodes):
            names = []
            for j, item in enumerate(given):
                if not isinstance(item, str):
                    graph.add_initializer(f"c{i}_{j}", np.asarray(item))
                    item = f"c{i}_{j}"
                names.append(item)
            domain, _, kind = op.rpartition("::")
            graph.add_node(f"n{i}", kind, names, [made], attributes[0] if attributes else None, domain=domain)
        graph.add_output(self.nodes[-1][2], None)
        return graph


def erf(*last):
    return [("Div", ["x", R2], "a"), ("Erf", ["a"], "b"), ("Add", ["b", ONE], "c"), *last]


def tanh(*last):
    return [
        ("Pow", ["x", np.float32(3)], "a"),
        ("Mul", ["a", CUBE], "b"),
        ("Add", ["x", "b"], "c"),
        ("Mul", [FACTOR, "c"], "d"),
        ("Tanh", ["d"], "e"),
        ("Add", ["e", ONE], "f"),
        *last,
    ]


def layer_norm(square, *divided):
    return [
        ("ReduceMean", ["x", AXES], "m"),
        ("Sub", ["x", "m"], "d"),
        square,
        ("ReduceMean", ["q", AXES], "v"),
        ("Add", ["v", np.float32(1e-5)], "w"),
        ("Sqrt", ["w"], "r"),
        *divided,
        ("Mul", ["n", SCALE], "o"),
        ("Add", ["o", SHIFT], "y"),
    ]


def rms(*divided):
    return [
        ("Pow", ["x", np.float32(2)], "q"),
        ("ReduceMean", ["q", AXES], "v"),
        ("Add", ["v", np.float32(1e-6)], "w"),
        ("Sqrt", ["w"], "r"),
        *divided,
        ("Mul", [SCALE, "n"], "y"),
    ]


_RNG = np.random.default_rng(5)
KEYS, SHARED, VALUES, MASK, COS, SIN = (
    _RNG.standard_normal(shape).astype(np.float32)
    for shape in ((2, 2, 4, 5), (2, 2, 5, 4), (2, 2, 5, 3), (2, 1, 3, 5), (3, 4), (3, 4))
)
QUERIES, ROOT, ATTEND = (2, 2, 3, 4), np.float32(0.5), "pyflame::FusedAttention"


def attend(*scaled):
    return [
        ("MatMul", ["x", KEYS], "s"),
        *scaled,
        ("Add", ["t", MASK], "m"),
        ("Softmax", ["m"], "p", {"axis": -1}),
    ]


def turn(*turned):
    return [("Mul", ["x", COS], "u"), *turned, ("Mul", ["t", SIN], "w"), ("Add", ["u", "w"], "y")]


def repeat(x, name):
    wide = np.array([2, 1, 2, 5, x.shape[-1]])
    return [
        ("Unsqueeze", [x[:, :1], np.array([2])], f"{name}1"),
        ("Expand", [f"{name}1", wide], f"{name}2"),
        ("Reshape", [f"{name}2", np.array([2, 2, 5, -1])], name),
    ]


def part(start, end, made, step=1):
    return ("Slice", ["x", *(np.array([n]) for n in (start, end, 3, step))], made)


SQUARE, PRODUCT = ("Pow", ["d", np.float32(2)], "q"), ("Mul", ["d", "d"], "q")
CONV = ("Conv", ["x", np.float32(np.arange(2 * 3).reshape(2, 3, 1, 1) / 5 - 0.4), np.float32([0.5, -0.5])], "a")
IMAGE = (2, 3, 4, 4)
CASES = {
    "transpose_pair": Case(
        [("Transpose", ["x"], "a", {"perm": [2, 0, 1]}), ("Transpose", ["a"], "y", {"perm": [2, 0, 1]})],
        ["Transpose"],
        (2, 3, 4),
    ),
    "transpose_nothing": Case([("Transpose", ["x"], "a", {"perm": [0, 1]}), ("Neg", ["a"], "y")], ["Neg"]),
    "transposes_cancel": Case(
        [
            ("Transpose", ["x"], "a", {"perm": [0, 2, 3, 1]}),
            ("Mul", ["a", SCALE[:3]], "b"),
            ("Relu", ["b"], "c"),
            ("Transpose", ["c"], "y", {"perm": [0, 3, 1, 2]}),
        ],
        ["Mul", "Relu", "Identity"],
        IMAGE,
    ),
    "reshape_pair": Case(
        [("Reshape", ["x", np.array([12])], "a"), ("Reshape", ["a", np.array([2, -1])], "y")], ["Reshape"]
    ),
    "reshape_of_flatten": Case([("Flatten", ["x"], "a"), ("Reshape", ["a", np.array([2, 6])], "y")], ["Reshape"]),
    "same_shape": Case([("Reshape", ["x", np.array([3, 4])], "a"), ("Neg", ["a"], "y")], ["Neg"]),
    "constant_shape": Case(
        [("Shape", ["x"], "s"), ("Concat", ["s", np.array([1])], "t", {"axis": 0}), ("Reshape", ["x", "t"], "y")],
        ["Shape", "Concat", "Reshape"],
        ("N", 4),
    ),
    "cast_to_same": Case([("Cast", ["x"], "a", {"to": 1}), ("Neg", ["a"], "y")], ["Neg"]),
    "cast_pair": Case(
        [("Cast", ["x"], "a", {"to": 1}), ("Cast", ["a"], "b", {"to": 3}), ("Neg", ["b"], "y")], ["Neg"], dtype=np.int8
    ),
    "times_one": Case([("Div", ["x", ONE], "a"), ("Mul", [ONE, "a"], "b"), ("Neg", ["b"], "y")], ["Neg"]),
    "minus_zero": Case([("Sub", ["x", np.float32(0)], "a"), ("Neg", ["a"], "y")], ["Neg"]),
    "plus_zero": Case([("Add", ["x", np.float32(-0.0)], "a"), ("Neg", ["a"], "y")], ["Neg"]),
    "concat_of_one": Case([("Concat", ["x"], "a", {"axis": 0}), ("Neg", ["a"], "y")], ["Neg"]),
    "pad_nothing": Case([("Pad", ["x", np.zeros(4, np.int64)], "a"), ("Neg", ["a"], "y")], ["Neg"]),
    "slice_everything": Case([("Slice", ["x", *const([0], [2**63 - 1], [1], [1])], "a"), ("Neg", ["a"], "y")], ["Neg"]),
    "squeeze_of_unsqueeze": Case(
        [("Unsqueeze", ["x", np.array([1])], "a"), ("Squeeze", ["a", np.array([-2])], "b"), ("Neg", ["b"], "y")],
        ["Neg"],
    ),
    "relu_twice": Case([("Relu", ["x"], "a"), ("Relu", ["a"], "y")], ["Relu"]),
    "silu": Case([("Sigmoid", ["x"], "a"), ("Mul", ["a", "x"], "y")], ["Swish"]),
    "scaled_silu": Case(
        [("Mul", ["x", np.float32(1.702)], "a"), ("Sigmoid", ["a"], "b"), ("Mul", ["x", "b"], "y")], ["Swish"]
    ),
    "gelu": Case(erf(("Mul", ["x", "c"], "d"), ("Mul", ["d", HALF], "y")), ["Gelu"]),
    "gelu (half first)": Case(erf(("Mul", ["x", HALF], "d"), ("Mul", ["d", "c"], "y")), ["Gelu"]),
    "gelu (half inside)": Case(erf(("Mul", ["c", HALF], "d"), ("Mul", ["x", "d"], "y")), ["Gelu"]),
    "gelu_tanh": Case(tanh(("Mul", ["x", HALF], "g"), ("Mul", ["g", "f"], "y")), ["Gelu"]),
    "gelu_tanh (half last)": Case(tanh(("Mul", ["x", "f"], "g"), ("Mul", ["g", HALF], "y")), ["Gelu"]),
    "hard_swish": Case(
        [("HardSigmoid", ["x"], "a", {"alpha": 1 / 6, "beta": 0.5}), ("Mul", ["x", "a"], "y")], ["HardSwish"]
    ),
    "hard_swish (clip)": Case(
        [
            ("Add", ["x", np.float32(3)], "a"),
            ("Clip", ["a", np.float32(0), np.float32(6)], "b"),
            ("Mul", ["x", "b"], "c"),
            ("Div", ["c", np.float32(6)], "y"),
        ],
        ["HardSwish"],
    ),
    "layer_norm": Case(layer_norm(SQUARE, ("Div", ["d", "r"], "n")), ["LayerNormalization"]),
    "layer_norm (product)": Case(layer_norm(PRODUCT, ("Div", ["d", "r"], "n")), ["LayerNormalization"]),
    "layer_norm (inverse)": Case(
        layer_norm(SQUARE, ("Reciprocal", ["r"], "i"), ("Mul", ["d", "i"], "n")), ["LayerNormalization"]
    ),
    "layer_norm (one over)": Case(
        layer_norm(SQUARE, ("Div", [ONE, "r"], "i"), ("Mul", ["d", "i"], "n")), ["LayerNormalization"]
    ),
    "layer_norm (TensorFlow)": Case(
        [
            *layer_norm(PRODUCT)[:-2],
            ("Reciprocal", ["r"], "i"),
            ("Mul", ["i", SCALE], "f"),
            ("Mul", ["x", "f"], "u"),
            ("Mul", ["m", "f"], "t"),
            ("Sub", [SHIFT, "t"], "s"),
            ("Add", ["u", "s"], "y"),
        ],
        ["LayerNormalization"],
    ),
    "rms_norm": Case(rms(("Div", ["x", "r"], "n")), ["RMSNormalization"]),
    "rms_norm (inverse)": Case(rms(("Reciprocal", ["r"], "i"), ("Mul", ["x", "i"], "n")), ["RMSNormalization"]),
    "attention": Case(
        [*attend(("Div", ["s", ROOT], "t")), ("MatMul", ["p", VALUES], "y")], ["Transpose", ATTEND], QUERIES
    ),
    "attention (guarded)": Case(
        [
            *attend(("Mul", ["s", ROOT], "t")),
            ("IsNaN", ["p"], "n"),
            ("Where", ["n", np.float32(0), "p"], "w"),
            ("MatMul", ["w", VALUES], "y"),
        ],
        ["Transpose", ATTEND],
        QUERIES,
    ),
    "attention_scale": Case(
        [("Mul", ["x", ROOT], "q"), (ATTEND, ["q", SHARED, VALUES, MASK], "y", {"scale": 0.25})], [ATTEND], QUERIES
    ),
    "attention_scale (keys)": Case(
        [("Mul", ["x", ROOT], "k"), (ATTEND, [SHARED, "k", SHARED[:, :, :3]], "y")], [ATTEND], QUERIES
    ),
    "attention_heads": Case(
        [*repeat(SHARED, "k"), *repeat(VALUES, "v"), (ATTEND, ["x", "k", "v", MASK], "y", {"scale": 0.25})],
        [ATTEND],
        QUERIES,
    ),
    "rotary": Case(
        turn(part(2, 4, "b"), ("Neg", ["b"], "n"), part(0, 2, "a"), ("Concat", ["n", "a"], "t", {"axis": -1})),
        ["pyflame::FusedRotary"],
        QUERIES,
    ),
    "rotary_neighbours": Case(
        turn(
            part(1, 4, "b", 2),
            ("Neg", ["b"], "n"),
            part(0, 9, "a", 2),
            ("Unsqueeze", ["n", np.array([-1])], "c"),
            ("Unsqueeze", ["a", np.array([-1])], "d"),
            ("Concat", ["c", "d"], "e", {"axis": -1}),
            ("Reshape", ["e", np.array([0, 0, 0, -1])], "t"),
        ),
        ["pyflame::FusedRotary"],
        QUERIES,
    ),
    "transpose_in_batches": Case(
        [
            ("Reshape", ["x", np.array([-1, 3, 4])], "a"),
            ("Transpose", ["a"], "b", {"perm": [0, 2, 1]}),
            ("Reshape", ["b", np.array([2, 2, 4, 3])], "y"),
        ],
        ["Transpose"],
        QUERIES,
    ),
    "conv_bn": Case([CONV, ("BatchNormalization", ["a", *STATS], "y")], ["pyflame::FusedConvBN"], IMAGE),
    "conv_relu": Case([CONV, ("Relu", ["a"], "y")], ["pyflame::FusedConvRelu"], IMAGE),
    "conv_bn_relu": Case(
        [("pyflame::FusedConvBN", CONV[1], "a"), ("Relu", ["a"], "y")], ["pyflame::FusedConvBNRelu"], IMAGE
    ),
    "bn_relu": Case(
        [("BatchNormalization", ["x", *STATS], "a"), ("Relu", ["a"], "y")], ["pyflame::FusedBNRelu"], (2, 2, 3)
    ),
    "matmul_add": Case(
        [("MatMul", ["x", np.float32(np.arange(8).reshape(4, 2))], "a"), ("Add", [np.float32([1, 2]), "a"], "y")],
        ["Gemm"],
    ),
    "add_relu": Case([("Add", ["x", SHIFT], "a"), ("Relu", ["a"], "y")], ["pyflame::FusedAddRelu"]),
    "mul_add": Case([("Mul", ["x", SCALE], "a"), ("Add", ["x", "a"], "y")], ["pyflame::FMA"]),
}
# Tested where they need more than one line of a table.
ELSEWHERE = {"constant_branch", "loop_invariants"}


def rule_of(name):
    return next(r for r in opt.all_rules() if r.name == name.partition(" ")[0])


def load_rules():
    return [r for r in opt.all_rules() if r.stage == "load"]  # test_specialize.py has the others


def test_every_rule_has_a_case():
    assert {r.name for r in load_rules()} - {n.partition(" ")[0] for n in CASES} - ELSEWHERE == set()


def test_rules_say_what_they_do():
    for rule in load_rules():
        assert rule.about.endswith("."), rule.name
        assert rule.family in ("simplify", "fuse")
        assert rule.exact or rule.family == "fuse", f"{rule.name}: a rule that trades bits runs from EXTENDED on"


@pytest.mark.parametrize("name", CASES)
def test_a_rule_makes_what_it_should_and_keeps_the_answer(name):
    case, rule = CASES[name], rule_of(name)
    graph = case.graph()
    twin = graph.copy()
    editor = Editor(twin)
    result = apply_rules(editor, [rule])
    editor.commit()
    assert result.modified
    assert {r.rule for r in result.rewrites} == {rule.name}
    assert twin.validate() == []
    assert [node.full_name for node in twin.nodes] == case.makes
    shape = tuple(3 if n == "N" else n for n in case.shape)
    for seed in range(4):
        feed = {"x": values(np.random.default_rng(seed), case.dtype, shape, edges=rule.exact and seed > 0)}
        with np.errstate(all="ignore"):
            before, after = answers(graph, feed), answers(twin, feed)
        assert differences(graph, before, after, rule.bound) == [], seed


def refused(name, *nodes, shape=QUERIES):
    """Whether a rule leaves nodes alone."""
    return not apply_rules(Editor(Case(nodes, [], shape).graph()), [rule_of(name)]).modified


def test_what_is_no_attention():
    last = ("MatMul", ["p", VALUES], "y")
    plain = attend(("Div", ["s", ROOT], "t"))
    assert refused("attention", *plain[:-1], ("Softmax", ["m"], "p", {"axis": 2}), last)
    assert refused("attention", ("MatMul", ["x", KEYS], "s"), ("Div", [ROOT, "s"], "t"), *plain[2:], last)
    assert refused("attention", plain[0], ("Div", ["s", np.float32(0)], "t"), *plain[2:], last)
    assert refused("attention", plain[0], ("Mul", ["s", MASK], "t"), *plain[2:], last)
    assert refused("attention", *plain, ("Neg", ["p"], "z"), last)
    one_head = [("MatMul", ["x", KEYS[:, :1]], "s"), ("Softmax", ["s"], "p", {"axis": -1}), last]
    assert refused("attention", *one_head)
    guarded = [("IsNaN", ["p"], "n"), ("Where", ["n", ROOT, "p"], "w"), ("MatMul", ["w", VALUES], "y")]
    assert refused("attention", *plain, *guarded)


def test_what_is_no_rotary_embedding():
    join = ("Concat", ["n", "a"], "t", {"axis": -1})
    good = [part(2, 4, "b"), ("Neg", ["b"], "n"), part(0, 2, "a"), join]
    assert not refused("rotary", *turn(*good))
    assert refused("rotary", *turn(part(1, 3, "b"), *good[1:]))
    assert refused("rotary", *turn(good[0], good[1], part(2, 4, "a"), join))
    assert refused("rotary", *turn(*good[:3], ("Concat", ["a", "n"], "t", {"axis": -1})))
    assert refused("rotary", *turn(part(0, 9, "b", 2), good[1], part(1, 9, "a", 2), join))
    swapped = [part(0, 9, "b", 2), ("Neg", ["b"], "n"), part(1, 9, "a", 2)]
    pairs = [(op, [*given], made, *more) for op, given, made, *more in CASES["rotary_neighbours"].nodes[4:-2]]
    assert refused("rotary_neighbours", *turn(*swapped, *pairs))


def test_a_transpose_of_merged_axes_that_are_split_otherwise_stays():
    reshape, transpose = ("Reshape", ["x", np.array([-1, 3, 4])], "a"), ("Transpose", ["a"], "b", {"perm": [0, 2, 1]})
    assert refused("transpose_in_batches", reshape, transpose, ("Reshape", ["b", np.array([4, 1, 4, 3])], "y"))
    other = ("Transpose", ["a"], "b", {"perm": [1, 0, 2]})
    assert refused("transpose_in_batches", reshape, other, ("Reshape", ["b", np.array([3, 2, 2, 4])], "y"))


def test_zero_added_to_a_float_stays():
    """-0.0 + 0.0 is 0.0."""
    case = Case([("Add", ["x", np.float32(0.0)], "y")], [])
    assert not opt.simplify(case.graph()).modified


def test_constants_that_broadcast_stay():
    case = Case([("Mul", ["x", np.ones((2, 3, 4), np.float32)], "y")], [])
    assert not opt.simplify(case.graph()).modified


def test_casts_that_round_or_wrap_stay():
    for dtype, between in ((np.float32, 10), (np.int32, 1), (np.int64, 6), (np.float64, 1)):
        back = DType.of(np.dtype(dtype)).onnx
        case = Case([("Cast", ["x"], "a", {"to": between}), ("Cast", ["a"], "y", {"to": back})], [], dtype=dtype)
        assert not opt.simplify(case.graph()).modified, dtype


def test_a_normalisation_over_another_axis_is_none():
    nodes = layer_norm(SQUARE, ("Div", ["d", "r"], "n"))
    nodes = [(op, [np.array([0]) if a is AXES else a for a in given], made) for op, given, made in nodes]
    graph = Case(nodes, [], (4, 4)).graph()
    opt.fuse_operators(graph)
    assert "LayerNormalization" not in [node.op_type for node in graph.nodes]


@pytest.mark.parametrize(("sizes", "left"), [([None, None], 2), (["N", 4], 1), ([None, 4], 2)])
def test_a_reshape_that_may_refuse_its_input_stays(sizes, left):
    graph = Graph("g")
    graph.add_input("x", sizes, DType.Float32)
    graph.add_initializer("a", np.array([-1, 2, 2] if sizes[0] == "N" else [3, -1]))
    graph.add_initializer("b", np.array([-1]))
    graph.add_node("first", "Reshape", ["x", "a"], ["t"])
    graph.add_node("last", "Reshape", ["t", "b"], ["y"])
    graph.add_output("y", [None], DType.Float32)
    opt.optimize(graph, opt.OptLevel.EXTENDED)
    assert [node.op_type for node in graph.nodes] == ["Reshape"] * left
