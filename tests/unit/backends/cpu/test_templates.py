"""Plans made from those of other lengths: equal to what planning each length gives, and right where they do not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame_rt
from pyflame_rt.backends.cpu.lower.lowering import HostStep, KernelStep
from pyflame_rt.backends.cpu.run import plan_template as template
from pyflame_rt.backends.cpu.run.plan import specialise
from pyflame_rt.graph import DType, Graph
from pyflame_rt.ops import infer_types
from pyflame_rt.opt.traced_sizes import BoundError, Trace, least, most
from tests.tolerances import within
from tests.unit.backends.cpu.test_lengths import encoder

RNG = np.random.default_rng(23)
WIDTH = 32


def weight(*shape):
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


# ---------------------------------------------------------------------- sizes

NUMBERS = st.integers(-9, 9)


@st.composite
def expressions(draw, depth=4):
    """A function of two numbers, made of what planners do with sizes."""
    if depth == 0 or draw(st.booleans()):
        which = draw(st.sampled_from("abc"))
        number = draw(NUMBERS)
        return {"a": lambda a, b: a, "b": lambda a, b: b, "c": lambda a, b: number}[which]
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    by = draw(st.integers(1, 7))
    kind = draw(st.sampled_from(["add", "sub", "mul", "div", "mod", "up", "most", "least", "max", "if", "eq"]))
    return {
        "add": lambda a, b: left(a, b) + right(a, b),
        "sub": lambda a, b: left(a, b) - right(a, b),
        "mul": lambda a, b: left(a, b) * right(a, b),
        "div": lambda a, b: left(a, b) // by,
        "mod": lambda a, b: left(a, b) % by,
        "up": lambda a, b: -(-left(a, b) // by) * by,
        "most": lambda a, b: most(left(a, b), right(a, b)),
        "least": lambda a, b: least(left(a, b), right(a, b)),
        "max": lambda a, b: max(left(a, b), right(a, b)),
        "if": lambda a, b: left(a, b) if left(a, b) <= right(a, b) else by,
        "eq": lambda a, b: by if left(a, b) == right(a, b) else right(a, b) // by,
    }[kind]


@settings(max_examples=300, deadline=None)
@given(
    expressions(), st.integers(2, 60), st.integers(2, 60), st.lists(st.tuples(st.integers(2, 60), st.integers(2, 60)))
)
def test_a_traced_size_is_what_the_numbers_give(function, a, b, others):
    trace = Trace()
    result = function(trace.symbol(a), trace.symbol(b))
    for x, y in [(a, b), *others]:
        if trace.holds([x, y]):
            assert trace.numbers([x, y]).of(result) == function(x, y)
    assert trace.holds([a, b])


def test_sizes_never_give_their_number_away():
    n = Trace().symbol(5)
    for ask in (int, float, range, np.zeros, lambda v: np.array([v], np.int64), lambda v: [0][v], lambda v: v == 5.0):
        with pytest.raises(BoundError):
            ask(n)
    with pytest.raises(TypeError, match="does not travel"):
        n.__reduce__()


def test_division_by_a_size_that_is_zero_elsewhere_does_not_hold():
    trace = Trace()
    n = trace.symbol(5)
    assert 100 // (n - 3) == 50
    assert not trace.holds([3])
    with pytest.raises(ZeroDivisionError):
        _ = n // (n - 5)


# ---------------------------------------------------------------------- whole plans


def positions():
    """An encoder's head as exporters write it: sizes taken from the input, positions, a mask made of them."""
    g = pyflame_rt.Graph("positions")
    g.add_input("ids", [1, "T"], DType.Int64)
    g.add_initializer("words", weight(50, WIDTH))
    g.add_initializer("places", weight(400, WIDTH))
    g.add_initializer("w", weight(WIDTH, WIDTH))
    for name, value in {"zero": 0, "one": 1, "two": 2}.items():
        g.add_initializer(name, np.array([value], np.int64))
    g.add_initializer("s0", np.array(0, np.int64))
    g.add_initializer("s1", np.array(1, np.int64))
    g.add_initializer("low", np.array(-1e9, np.float32))
    g.add_initializer("none", np.array(0, np.float32))
    g.add_initializer("split", np.array([4, WIDTH // 4], np.int64))
    g.add_node("shape", "Shape", ["ids"], ["shape"])
    g.add_node("length", "Slice", ["shape", "one", "two"], ["length"])
    g.add_node("scalar", "Squeeze", ["length", "zero"], ["scalar"])
    g.add_node("range", "Range", ["s0", "scalar", "s1"], ["range"])
    g.add_node("column", "Unsqueeze", ["range", "one"], ["column"])
    g.add_node("later", "Greater", ["range", "column"], ["later"])
    g.add_node("mask", "Where", ["later", "low", "none"], ["mask"])
    g.add_node("place", "Slice", ["places", "zero", "length", "zero"], ["place"])
    g.add_node("word", "Gather", ["words", "ids"], ["word"])
    g.add_node("x", "Add", ["word", "place"], ["x"])
    g.add_node("y", "MatMul", ["x", "w"], ["y"])
    g.add_node("target", "Concat", ["shape", "split"], ["target"], axis=0)
    for name in ("x", "y"):
        g.add_node(f"{name}4", "Reshape", [name, "target"], [f"{name}4"])
        g.add_node(f"{name}t", "Transpose", [f"{name}4"], [f"{name}t"], perm=[0, 2, 1, 3])
    g.add_node("turned", "Transpose", ["yt"], ["turned"], perm=[0, 1, 3, 2])
    g.add_node("scores", "MatMul", ["xt", "turned"], ["scores"])
    g.add_node("masked", "Add", ["scores", "mask"], ["masked"])
    g.add_node("soft", "Softmax", ["masked"], ["soft"], axis=-1)
    g.add_node("mixed", "MatMul", ["soft", "yt"], ["mixed"])
    g.add_node("mean", "ReduceMean", ["mixed", "two"], ["mean"])
    g.add_output("mean", [1, 4, 1, WIDTH // 4])
    g.add_output("mixed", [1, 4, "T", WIDTH // 4])
    return g


def cached():
    """Attention over what was before and what is new, with both handed out."""
    g = pyflame_rt.Graph("cached")
    g.add_input("x", [1, "S", WIDTH])
    g.add_input("past", [1, 2, "P", WIDTH // 2])
    g.add_input("mask", [1, 1, "S", "total"])
    g.add_initializer("w", weight(WIDTH, WIDTH))
    g.add_initializer("heads", np.array([0, 0, 2, WIDTH // 2], np.int64))
    g.add_node("k", "MatMul", ["x", "w"], ["k"])
    g.add_node("k4", "Reshape", ["k", "heads"], ["k4"])
    g.add_node("kt", "Transpose", ["k4"], ["kt"], perm=[0, 2, 1, 3])
    g.add_node("all", "Concat", ["past", "kt"], ["all"], axis=2)
    g.add_node("turned", "Transpose", ["all"], ["turned"], perm=[0, 1, 3, 2])
    g.add_node("scores", "MatMul", ["kt", "turned"], ["scores"])
    g.add_node("masked", "Add", ["scores", "mask"], ["masked"])
    g.add_node("soft", "Softmax", ["masked"], ["soft"], axis=-1)
    g.add_node("y", "MatMul", ["soft", "all"], ["y"])
    g.add_output("y", [1, 2, "S", WIDTH // 2])
    g.add_output("all", [1, 2, "total", WIDTH // 2])
    return g


def feeds_of(name, length, past=0):
    if name == "positions":
        return {"ids": RNG.integers(0, 50, (1, length))}
    if name == "cached":
        mask = np.where(RNG.random((1, 1, length, past + length)) < 0.2, np.float32(-5), np.float32(0))
        shapes = {"x": (1, length, WIDTH), "past": (1, 2, past, WIDTH // 2)}
        return {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()} | {"mask": mask}
    return {"x": RNG.standard_normal((1, length, WIDTH)).astype(np.float32)}


GRAPHS = {"positions": positions, "cached": cached, "encoder": lambda: encoder(2, WIDTH)}


def types_of(feeds):
    return {name: (DType.of(a.dtype), a.shape) for name, a in feeds.items()}


def described(plan):
    """Everything that is done, as numbers."""
    steps = []
    for step in plan.lowered.steps:
        assert isinstance(step, KernelStep), step
        views = [(v.shape, v.strides, v.offset, v.buffer.nbytes, v.buffer.place, v.buffer.offset) for v in step.views]
        steps.append((step.kernel.key, step.params, step.rows, step.grain, views))
    return steps, plan.arena_bytes, plan.outputs


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("traced", [40, 290])
def test_a_plan_from_a_template_is_the_plan_of_that_length(name, traced):
    past = 30 if name == "cached" else 0
    session = pyflame_rt.InferenceSession(GRAPHS[name]())
    session.run(None, feeds_of(name, 2, past))
    graph = session._compile(overrides=False).executable.graph
    wanted = tuple(info.name for info in graph.outputs)
    types = types_of(feeds_of(name, traced, past))
    symbols = template.open_axes(graph, types, [types_of(feeds_of(name, 7, past))])
    made = template.trace_plan(graph, types, symbols, 2, wanted)
    assert made is not None
    fitting = 0
    for length in (2, 3, 16, 17, 31, 39, 41, 64, 100, 255, 256, 257, 300, 333, 399):
        types = types_of(feeds_of(name, length, past))
        values = made.fits(types)
        if values is None:
            continue
        plan = made.plan(values, 2)
        assert plan is not None
        _, whole = specialise(graph, types, 2, wanted)
        assert whole is not None
        assert described(plan) == described(whole)
        fitting += 1
    assert fitting >= 4
    session.close()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("checked", [False, True])
def test_random_lengths_give_what_the_reference_gives(name, checked, monkeypatch):
    made = []
    original = template.PlanTemplate.plan
    monkeypatch.setattr(template.PlanTemplate, "plan", lambda *a: made.append(original(*a)) or made[-1])
    options = pyflame_rt.SessionOptions(checked=checked)
    graph = GRAPHS[name]()
    lengths = np.random.default_rng(5).integers(1, 330, 14)
    with (
        pyflame_rt.InferenceSession(graph, options) as session,
        pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"]) as reference,
    ):
        for length in [9, 12, 20, *lengths.tolist()]:
            feeds = feeds_of(name, length, past=length % 50 if name == "cached" else 0)
            for got, want in zip(session.run(None, feeds), reference.run(None, feeds), strict=True):
                np.testing.assert_allclose(got, want, **within("rounded"))
        assert len(session.explain().rows) > 3
    assert len(made) >= 6


def test_positions_beyond_the_table_are_an_error_as_ever():
    with pyflame_rt.InferenceSession(positions()) as session:
        for length in (10, 20, 30, 40):
            session.run(None, feeds_of("positions", length))
        with pytest.raises(pyflame_rt.PyFlameRTError):
            session.run(None, feeds_of("positions", 401))
        assert session.run(None, feeds_of("positions", 399))[1].shape == (1, 4, 399, WIDTH // 4)


def test_graphs_with_steps_for_one_size_are_planned_for_each():
    g = pyflame_rt.Graph("image")
    g.add_input("x", [1, 3, "H", "W"])
    g.add_initializer("w", weight(8, 3, 3, 3))
    g.add_node("conv", "Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1])
    g.add_node("pool", "MaxPool", ["a"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    g.add_output("y", [1, 8, None, None])
    with (
        pyflame_rt.InferenceSession(g) as session,
        pyflame_rt.InferenceSession(g, providers=["ReferenceExecutionProvider"]) as reference,
    ):
        for height, width in ((8, 8), (10, 12), (16, 9), (21, 30), (32, 32)):
            x = RNG.standard_normal((1, 3, height, width)).astype(np.float32)
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
            )


def test_a_template_that_contradicts_a_plan_is_not_used(caplog):
    session = pyflame_rt.InferenceSession(encoder(1, WIDTH))
    session.run(None, feeds_of("encoder", 9))
    graph = session._compile(overrides=False).executable.graph
    wanted = tuple(info.name for info in graph.outputs)
    types, others = (types_of(feeds_of("encoder", n)) for n in (20, 30))
    symbols = template.open_axes(graph, types, [others])
    made = template.trace_plan(graph, types, symbols, 2, wanted)
    _, known = specialise(graph, others, 2, wanted)
    assert made is not None
    assert known is not None
    templates = template.Templates()
    templates.add(made, [(others, known)])
    assert templates.made == [made]
    first = next(step for step in made.lowered.steps if isinstance(step, KernelStep))
    first.rows += 1
    templates.add(made, [(others, known)])
    assert templates.made == [made]
    assert templates.failures == 1
    assert "differs" in caplog.text
    assert not any(isinstance(step, HostStep) for step in made.lowered.steps)
    session.close()


@pytest.mark.parametrize("sizes", [(4, 6, 2, 3), (9, 5, 2, 4, 8), (2, 3, 4, 5, 9)])
def test_differences_of_sizes_may_be_negative(sizes):
    """Quotients of them are rounded towards zero, whatever plan serves the next size."""
    graph = Graph("g")
    graph.add_input("x", [2, "N"])
    graph.add_initializer("to", np.array([2, 1]))
    graph.add_node("crop", "CenterCropPad", ["x", "to"], ["y"])
    graph.add_output("y", [2, 1])
    session = pyflame_rt.InferenceSession(graph)
    judge = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])
    for n in sizes:
        feed = {"x": RNG.standard_normal((2, n)).astype(np.float32)}
        assert (session.run(None, feed)[0] == judge.run(None, feed)[0]).all(), n


def test_a_quotient_of_sizes_is_not_known_where_its_sign_is_not():
    """For sizes that have names, not numbers: (N - 5) / 2 is rounded up below 5 and down above."""
    graph = Graph("g")
    graph.add_input("x", ["N"])
    graph.add_node("shape", "Shape", ["x"], ["n"])
    for name, number in (("five", -5), ("even", 2), ("two", 2)):
        graph.add_initializer(name, np.array([number]))
    for i, how in enumerate(([("Add", "five")], [("Mul", "even"), ("Add", "two")], [("Add", "even")])):
        source = "n"
        for k, (op, by) in enumerate(how):
            graph.add_node(f"n{i}{k}", op, [source, by], [f"v{i}{k}"])
            source = f"v{i}{k}"
        graph.add_node(f"half{i}", "Div", [source, "two"], [f"h{i}"])
        graph.add_node(f"made{i}", "ConstantOfShape", [f"h{i}"], [f"y{i}"])
        graph.add_output(f"y{i}", [None])
    infer_types(graph)
    shapes = [str(graph.types[f"y{i}"].shape) for i in range(3)]
    assert shapes[1] == "[N + 1]"
    assert shapes[2] == "[floor((N + 2)/2)]"
    assert "floor" not in shapes[0]


def test_constant_regions_of_batches_of_several_sizes():
    """What is looked at when a plan is made may be compared with a size that stays open."""
    graph = Graph("g")
    graph.add_input("x", ["N", 1, "H", "W"])
    graph.add_initializer("rois", np.array([[0, 0, 0, 2, 2], [1, 1, 1, 3, 3]], np.float32))
    graph.add_node("pool", "MaxRoiPool", ["x", "rois"], ["y"], {"pooled_shape": [2, 2]})
    graph.add_output("y", [2, 1, 2, 2])
    session = pyflame_rt.InferenceSession(graph)
    judge = pyflame_rt.InferenceSession(graph, providers=["ReferenceExecutionProvider"])
    for shape in ((2, 1, 4, 5), (3, 1, 6, 5), (4, 1, 5, 7), (5, 1, 4, 4)):
        feed = {"x": RNG.standard_normal(shape).astype(np.float32)}
        assert (session.run(None, feed)[0] == judge.run(None, feed)[0]).all(), shape
