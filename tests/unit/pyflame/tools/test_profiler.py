import json

import numpy as np
import pytest

import pyflame as pf
from pyflame import instrumentation, nn


def training_step():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = pf.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()

    @pf.compile
    def step(x, y):
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)
    return step, rng.normal(size=(32, 64)).astype(np.float32), rng.integers(0, 10, 32)


def test_replayed_steps_are_profiled_operator_by_operator():
    step, x, y = training_step()
    step(x, y)
    with pf.tools.Profiler(profile_memory=True, with_stack=True) as profiler:
        for _ in range(3):
            step(x, y)
    result = profiler.result
    assert [run.name for run in result.runs] == ["compiled step"] * 3
    assert all(run.args["native"] for run in result.runs)
    assert any("test_profiler" in line for line in result.runs[0].args["stack"])
    products = [e for e in result.operators if "MatMul" in e.name]
    # Two layers: a product each forwards, and for the weights and the second layer's input backwards.
    assert sum(e.flops for e in products) // 3 >= 2 * (2 * 32 * 64 * 128) + 3 * (2 * 32 * 128 * 10)
    assert {"0", "2", "0/backward", "2/backward", "optimizer"} <= set(result.module_stats)
    inside = sum(e.duration_us for e in result.operators)
    assert 0 < inside <= sum(e.duration_us for e in result.runs) <= result.total_time * 1e6
    assert all(e.bytes > 0 for e in products)
    assert result.memory_stats["peak_bytes"] >= result.memory_stats["end_bytes"] > 0
    assert instrumentation.active is None


def test_eager_work_is_profiled_in_machine_code():
    model = nn.Linear(8, 4)
    with pf.tools.profile() as profiler:
        pf.eval(model(pf.ones([2, 8])))
        pf.eval(pf.relu(pf.randn([300, 300])).sum())
    assert [run.args["native"] for run in profiler.result.runs] == [True, True]
    (product,) = [e for e in profiler.result.operators if e.name in ("Gemm", "MatMul")]
    assert product.flops >= 2 * 2 * 8 * 4
    assert product.module == "Linear"
    assert product.args["kernel"] != "interpreter"
    assert "float32[2, 8]" in product.args["inputs"]


def test_the_trace_is_what_chrome_reads(tmp_path):
    step, x, y = training_step()
    step(x, y)
    with pf.tools.Profiler() as profiler, profiler.record_operation("my block"):
        step(x, y)
    document = json.loads(profiler.result.save_chrome_trace(tmp_path / "trace.json").read_text())
    events = {e["name"]: e for e in document["traceEvents"]}
    mine, run = events["my block"], events["compiled step"]
    assert all(e["ph"] == "X" and e["dur"] >= 0 for e in document["traceEvents"])
    assert mine["ts"] <= run["ts"]
    assert run["ts"] + run["dur"] <= mine["ts"] + mine["dur"] + 1
    inner = [e for e in document["traceEvents"] if e["cat"] == "operator"]
    assert inner
    assert all(run["ts"] <= e["ts"] and e["ts"] + e["dur"] <= run["ts"] + run["dur"] + 1 for e in inner)


def test_results_are_the_same_while_profiled():
    step, x, y = training_step()
    other, _, _ = training_step()
    del other
    first = float(step(x, y))
    with pf.tools.Profiler():
        second = float(step(x, y))
    third = float(step(x, y))
    assert first > second > third


def test_the_table_names_the_costliest(capsys):
    step, x, y = training_step()
    step(x, y)
    pf.tools.enable_profiling()
    step(x, y)
    assert pf.tools.get_profiler().is_active
    result = pf.tools.disable_profiling()
    top = result.get_top_operations(3)
    assert [s.total_ms for s in top] == sorted((s.total_ms for s in top), reverse=True)
    text = result.summary()
    assert top[0].name in text
    assert "1 runs took" in text
    assert result.get_top_operations(1, sort_by="flops")[0].flops == max(
        s.flops for s in result.operation_stats.values()
    )
    with pytest.raises(ValueError, match="sort_by"):
        result.get_top_operations(1, sort_by="beauty")


def test_misuse_is_told():
    profiler = pf.tools.Profiler()
    with pytest.raises(RuntimeError, match="nothing was profiled"):
        _ = profiler.result
    with pytest.raises(RuntimeError, match="not active"):
        profiler.stop()
    with profiler, pytest.raises(RuntimeError, match="another profiler"):
        pf.tools.Profiler().start()
    with pytest.raises(RuntimeError, match="not enabled"):
        pf.tools.disable_profiling()
    assert instrumentation.active is None


def test_a_profile_ends_with_the_block_that_fails():
    with pytest.raises(LookupError), pf.tools.Profiler():
        raise LookupError
    assert instrumentation.active is None
