import copy

import numpy as np
import pytest

import pyflame as pf
from pyflame import instrumentation, nn


@pytest.fixture
def compiled():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4)))
    optimizer = pf.optim.SGD(model.parameters(), lr=0.1)

    @pf.compile
    def step(x):
        out = pf.tools.tap(model(x), "logits")
        loss = pf.tools.tap((out * out).sum(), "loss")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return model, step, np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


def test_values_inside_replayed_steps_are_seen(compiled):
    model, step, x = compiled
    step(x), step(x)  # the second finds gradients of the first
    traces = step.trace_count
    with pf.tools.PyFlameDebugger() as debugger:
        hidden, logits, loss = debugger.watch("0"), debugger.watch("logits"), debugger.watch("loss")
        for n in range(3):
            weight, bias = model[0].weight.numpy().copy(), model[0].bias.numpy().copy()
            got = float(step(x))
            np.testing.assert_allclose(hidden.last, x @ weight.T + bias, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(loss.last, got, rtol=1e-5)
            np.testing.assert_allclose((logits.last**2).sum(), got, rtol=1e-4)
            assert list(hidden.runs) == list(range(n + 1))
    assert step.trace_count == traces
    assert instrumentation.active is None


def test_watching_does_not_change_training(compiled):
    model, step, x = compiled
    start = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    plain = [float(step(x)) for _ in range(4)]
    model.load_state_dict(start)
    with pf.tools.PyFlameDebugger() as debugger:
        debugger.watch("*")
        seen = [float(step(x)) for _ in range(4)]
    np.testing.assert_allclose(seen, plain, rtol=1e-5)


def test_the_first_value_that_is_not_finite_stops_the_step_before_it_changes_anything(compiled):
    model, step, x = compiled
    step(x)
    x[2, 3] = np.inf
    before = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    with pf.tools.PyFlameDebugger() as debugger:
        number = debugger.set_breakpoint(condition="nonfinite", stop=True)
        with pytest.raises(pf.tools.BreakpointHit, match=r"in module '0'") as caught:
            step(x)
    hit = caught.value.hit
    assert (hit.module, hit.op_type) in (("0", "MatMul"), ("0", "Gemm"))
    assert np.isinf(hit.value).sum() == 16
    assert debugger.breakpoints[number].hit_count == 1
    assert copy.copy(caught.value).hit.node == hit.node
    assert all(np.array_equal(before[k], v.numpy()) for k, v in model.state_dict().items())


def test_places_and_conditions(compiled):
    _, step, x = compiled
    seen = []
    with pf.tools.PyFlameDebugger(verbose=True, keep=2) as debugger:
        by_op = debugger.set_breakpoint(op="Re*", callback=seen.append)
        by_module = debugger.set_breakpoint(module="2", condition=lambda a: a.ndim == 2)
        by_name = debugger.set_breakpoint(tensor="logits")
        never = debugger.set_breakpoint(tensor="logits", condition="nan")
        step(x)
        debugger.enable_breakpoint(by_name, False)
        step(x)
        counts = {n: b.hit_count for n, b in debugger.breakpoints.items()}
        debugger.remove_breakpoint(by_op)
        debugger.clear_breakpoints()
    assert counts[by_name] == 1
    assert counts[never] == 0
    assert counts[by_module] >= 2
    assert {hit.op_type for hit in seen} <= {"Relu", "Reshape", "ReduceSum"}
    assert "Relu" in {hit.op_type for hit in seen}
    assert len(debugger.hits) == 2  # the newest


def test_eager_values_are_seen_too():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    x = pf.randn([2, 3])
    with pf.tools.PyFlameDebugger() as debugger:
        hidden = debugger.watch("0")
        inner = pf.exp(x)
        named = debugger.watch("inner", inner)
        pf.eval(model(inner).sum())
    assert hidden.last.shape == (2, 4)
    np.testing.assert_allclose(named.last, np.exp(x.numpy()), rtol=1e-5)


def test_many_values_are_looked_at_in_pieces(compiled, monkeypatch):
    import pyflame.tools.debugger as module

    _, step, x = compiled
    with pf.tools.PyFlameDebugger() as debugger:
        debugger.watch("*")
        step(x)
        whole = {name: w.last.copy() for name, w in debugger.watches.items()}
        count = len(debugger.watches["*"].values)
    monkeypatch.setattr(module, "MAX_PIECE", 256)
    with pf.tools.PyFlameDebugger(keep=1000) as debugger:
        watched = debugger.watch("*")
        step(x)
    assert len(watched.values) >= count
    assert whole


def test_misuse_is_told():
    debugger = pf.tools.PyFlameDebugger()
    with pytest.raises(ValueError, match="place"):
        debugger.set_breakpoint()
    with pytest.raises(ValueError, match="nan, inf"):
        debugger.set_breakpoint(condition="strange")
    with pytest.raises(KeyError, match="no breakpoint 7"):
        debugger.remove_breakpoint(7)
    with pytest.raises(KeyError, match="not watched"):
        debugger.unwatch("x")
    with pytest.raises(LookupError, match="nothing named 'x'"):
        _ = debugger.watch("x").last
    with pytest.raises(TypeError, match="ndarray"):
        pf.tools.tap(np.ones(2), "x")
    with debugger, pytest.raises(RuntimeError, match="another debugger"), pf.tools.PyFlameDebugger():
        pass
    with debugger:
        assert pf.tools.PyFlameDebugger.get_active() is debugger
    assert pf.tools.PyFlameDebugger.get_active() is None


def test_statistics_and_differences():
    facts = pf.tools.TensorInspector.inspect(pf.tensor([1.0, float("inf"), float("nan"), 0.0]))
    assert (facts["nan_count"], facts["inf_count"], facts["zero_count"], facts["max"]) == (1, 1, 1, 1.0)
    compare = pf.tools.PyFlameDebugger.compare
    assert compare(pf.ones([3]), np.ones(3))["equal"]
    found = compare(np.array([1.0, np.nan, 3.0]), np.array([1.0, np.nan, 3.5]))
    assert (found["close"], found["different"], found["worst_index"]) == (False, 1, [2])
    assert "shapes" in compare(np.ones(2), np.ones(3))["reason"]
    assert compare(np.ones(0), np.ones(0))["equal"]


def test_a_profiler_and_a_debugger_work_together(compiled):
    _, step, x = compiled
    step(x)
    with pf.tools.PyFlameDebugger() as debugger, pf.tools.Profiler() as profiler:
        seen = debugger.watch("logits")
        step(x)
    assert len(seen.values) == 1
    assert profiler.result.operators
