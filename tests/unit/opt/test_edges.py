"""Places that look like a rule's picture and are not: other numbers, ranks, types, readers, and faulty nodes."""

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.graph import DType, Graph
from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.opt import OptLevel, optimize
from pyflame_rt.opt.verification import allowed, answers, differences
from tests.unit.opt.random_graphs import values

ROOT = 2.0**0.5


class Draft:
    """A graph whose inputs hold given arrays; constants are made where an array stands among the inputs."""

    def __init__(self, **inputs):
        self.graph, self.feed = Graph("draft"), inputs
        for name, array in inputs.items():
            self.graph.add_input(name, list(array.shape), DType.of(array.dtype))

    def node(self, op, inputs, output, **attributes):
        names = []
        for item in inputs:
            if not isinstance(item, str):
                name = f"c{len(self.graph.initializers)}"
                self.graph.add_initializer(name, np.asarray(item))
                item = name
            names.append(item)
        outputs = output if isinstance(output, list) else [output]
        self.graph.add_node(f"n{len(self.graph.nodes)}", op, names, outputs, attributes)
        return self

    def check(self, *outputs):
        """Every level answers as no optimisation does, or refuses as it does; gives the operators that are left."""
        for name in outputs:
            self.graph.add_output(name, None)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            before = self._answers(self.graph)
            for level in (OptLevel.BASIC, OptLevel.EXTENDED, OptLevel.ALL):
                twin = self.graph.copy()
                result = optimize(twin, level)
                after = self._answers(twin)
                assert (before is None) == (after is None)
                if before is not None:
                    assert differences(self.graph, before, after, allowed(result)) == []
        return [node.op_type for node in twin.nodes]

    def _answers(self, graph):
        try:
            return answers(graph, self.feed)
        except PyFlameRTError:
            return None


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def number(value, dtype=np.float32):
    return np.array(value, dtype)


def gelu(root=ROOT, one=1.0, half=0.5, dtype=np.float32):
    draft = Draft(x=normal(3, 4, dtype=dtype))
    draft.node("Div", ["x", number(root, dtype)], "a").node("Erf", ["a"], "b").node(
        "Add", ["b", number(one, dtype)], "c"
    )
    return draft.node("Mul", ["x", "c"], "d").node("Mul", ["d", number(half, dtype)], "y").check("y")


def test_numbers_of_a_picture_are_meant_exactly():
    assert gelu() == ["Gelu"]
    assert gelu(root=np.nextafter(np.float32(ROOT), np.float32(2))) == ["Gelu"]
    for wrong in ({"root": 1.4142}, {"one": 1.00005}, {"half": 0.50003}, {"root": 1.41421356, "dtype": np.float64}):
        assert "Gelu" not in gelu(**wrong)


def quick_gelu(x, factor):
    draft = Draft(x=x).node("Mul", ["x", factor], "a").node("Sigmoid", ["a"], "b").node("Mul", ["x", "b"], "y")
    return draft.check("y")


def test_the_factor_of_a_sigmoid_adds_no_axes_and_loses_no_digits():
    assert quick_gelu(normal(3, 4), number([1.702])) == ["Swish"]
    assert "Swish" not in quick_gelu(normal(), number([1.702]))
    assert "Swish" not in quick_gelu(normal(3, 4, dtype=np.float64), number(1.702, np.float64))


@pytest.mark.parametrize(("alpha", "found"), [(1 / 6, True), (np.float32(1 / 6), True), (1 / 6 + 5e-7, False)])
def test_the_ramp_of_a_hard_swish(alpha, found):
    draft = Draft(x=4 * normal(3, 4)).node("HardSigmoid", ["x"], "h", alpha=float(alpha), beta=0.5)
    assert ("HardSwish" in draft.node("Mul", ["x", "h"], "y").check("y")) is found


def test_normalisations_of_float64_keep_their_digits():
    draft = Draft(x=normal(3, 4, dtype=np.float64))
    draft.node("ReduceMean", ["x", np.array([-1])], "m").node("Sub", ["x", "m"], "d").node("Mul", ["d", "d"], "q")
    draft.node("ReduceMean", ["q", np.array([-1])], "v").node("Add", ["v", np.float64(1e-5)], "e").node(
        "Sqrt", ["e"], "r"
    )
    draft.node("Div", ["d", "r"], "n").node("Mul", ["n", normal(4, dtype=np.float64)], "s")
    assert "LayerNormalization" not in draft.node("Add", ["s", normal(4, dtype=np.float64)], "y").check("y")


@pytest.mark.parametrize(("axes", "ends"), [([5], [9]), ([-7], [9]), ([0, 1], [9]), ([0], [9, 9]), ([1], [4])])
def test_slices_that_fit_no_axis_are_left_to_the_run(axes, ends):
    starts = np.zeros(len(axes), np.int64)
    Draft(x=normal(3, 4)).node("Slice", ["x", starts, np.array(ends), np.array(axes)], "y").check("y")


KINDS = [
    np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.float16, ml_dtypes.bfloat16, np.float32,
    np.float64,
]  # fmt: skip
LAST = [*KINDS, np.int64, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: np.dtype(k).name)
def test_pairs_of_casts(kind):
    x = values(np.random.default_rng(1), kind, (40,))
    for between, last in itertools.product(KINDS, LAST):
        if np.dtype(last).kind in "iu" and np.dtype(kind).kind not in "biu":
            continue  # what a float beyond an integer's range becomes is not defined
        codes = [DType.of(np.dtype(t)).onnx for t in (between, last)]
        narrow = {"saturate": 0} if "float8" in np.dtype(last).name else {}
        Draft(x=x).node("Cast", ["x"], "a", to=codes[0]).node("Cast", ["a"], "y", to=codes[1], **narrow).check("y")


def test_casts_there_and_back_go():
    for kind, wide in ((np.float16, 1), (ml_dtypes.bfloat16, 1), (np.float32, 11), (np.int16, 1)):
        draft = Draft(x=values(np.random.default_rng(2), kind, (9,))).node("Cast", ["x"], "a", to=wide)
        draft.node("Cast", ["a"], "b", to=DType.of(np.dtype(kind)).onnx)
        assert draft.node("Transpose", ["b"], "y").node("Shape", ["y"], "z").check("y")[0] != "Cast"


def test_constants_of_few_bits_are_not_those_of_many():
    draft = Draft(x=normal(2, 4))
    draft.node("DequantizeLinear", [np.array([1, 2, -3, 4], ml_dtypes.int4), number(0.5)], "a")
    draft.node("DequantizeLinear", [np.array([1, 2, -3, 4], np.int8), number(0.5)], "b")
    assert draft.node("Add", ["x", "a"], "c").node("Mul", ["c", "b"], "y").check("y")[:2] == ["DequantizeLinear"] * 2


def test_values_that_others_read_stay():
    kept = Draft(x=normal(3, 4)).node("Sigmoid", ["x"], "s").node("Mul", ["x", "s"], "y")
    assert kept.check("s", "y") == ["Sigmoid", "Mul"]
    read = Draft(x=normal(3, 4)).node("Sigmoid", ["x"], "s").node("Mul", ["x", "s"], "y").node("Neg", ["s"], "z")
    assert "Swish" not in read.check("y", "z")


def test_a_bias_larger_than_the_product_stays_outside():
    draft = Draft(x=normal(1, 4)).node("MatMul", ["x", normal(4, 3)], "m").node("Add", ["m", normal(5, 3)], "y")
    assert draft.check("y") == ["MatMul", "Add"]


def test_branches_read_what_is_outside():
    then, other = Graph("then"), Graph("other")
    for branch, op in ((then, "Neg"), (other, "Abs")):
        branch.add_input("x", [3, 4])
        branch.add_node("n", op, ["x"], ["made"])
        branch.add_output("made", None)
    for shape, chosen in itertools.product([(), (1,)], [True, False]):
        draft = Draft(x=normal(3, 4)).node("Exp", ["x"], "made")  # the branch has a value of this name too
        draft.node("If", [np.full(shape, chosen), "made"], "y", then_branch=then, else_branch=other)
        assert draft.check("y") == ["Exp", "Neg" if chosen else "Abs"]


def test_transposes_move_past_what_has_axes():
    back = {"perm": [0, 3, 1, 2]}
    start = Draft(x=normal(1, 2, 3, 4)).node("Transpose", ["x"], "a", perm=[0, 2, 3, 1])
    start.node("Concat", ["a", normal(1, 3, 4, 5)], "b", axis=-1).node("Transpose", ["b"], "c", **back)
    assert start.node("Neg", ["c"], "y").check("y") == ["Concat", "Neg"]
    start = Draft(x=normal(1, 2, 3, 4)).node("Transpose", ["x"], "a", perm=[0, 2, 3, 1])
    start.node("PRelu", ["a", normal(2)], "b").node("Transpose", ["b"], "c", **back)
    assert start.node("Neg", ["c"], "y").check("y") == ["PRelu", "Neg"]


def loop(turns, *, scan=False):
    """Sums what a turn makes of a value from outside; part of it is the same in every turn."""
    body = Graph("body")
    body.add_input("i", [], DType.Int64)
    body.add_input("going", [], DType.Bool)
    body.add_input("sum", [3, 3])
    body.add_input("x", [3, 4])
    body.add_input("n", [], DType.Int64)
    body.add_initializer("w", normal(4, 3, seed=1))
    body.add_node("a", "MatMul", ["x", "w"], ["p"])
    body.add_node("b", "Tanh", ["p"], ["t"])
    body.add_node("c", "Add", ["sum", "t"], ["next"])
    body.add_node("d", "Div", ["i", "n"], ["q"])
    body.add_node("e", "Div", ["n", "n"], ["r"])  # refused where n is zero, and only in a turn
    body.add_node("f", "Identity", ["going"], ["on"])
    for name in ("on", "next", "t", "q", "r"):
        body.add_output(name, None)
    draft = Draft(x=normal(3, 4), n=np.array(0 if turns == 0 else 2), start=normal(3, 3, seed=2))
    made = ["sum", "each", "quotients", "ones"]
    given = [np.array(turns), np.array(True), "start", "x", "n"]
    return draft.node("Loop", given, made, body=body, captured=2).check(*made)


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_what_no_turn_of_a_loop_changes_is_computed_once(turns):
    assert loop(turns) == ["MatMul", "Tanh", "Loop"]


def test_a_loop_whose_body_depends_on_every_turn_stays():
    body = Graph("body")
    for name, kind, shape in (("i", DType.Int64, []), ("going", DType.Bool, []), ("x", DType.Float32, [3, 4])):
        body.add_input(name, shape, kind)
    body.add_node("a", "Tanh", ["x"], ["next"])
    body.add_node("b", "Identity", ["going"], ["on"])
    for name in ("on", "next"):
        body.add_output(name, None)
    draft = Draft(x=normal(3, 4)).node("Loop", [np.array(3), np.array(True), "x"], "y", body=body)
    assert draft.check("y") == ["Loop"]
