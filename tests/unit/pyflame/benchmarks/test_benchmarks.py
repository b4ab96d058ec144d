import json
import time

import numpy as np
import pytest

import pyflame as pf
from pyflame.benchmarks import (
    BenchmarkConfig,
    BenchmarkModelInfo,
    BenchmarkReport,
    BenchmarkResult,
    BenchmarkRunner,
    benchmark,
    compare_results,
    get_benchmark_model,
    get_benchmark_model_info,
    list_benchmark_models,
    register_benchmark_model,
    timed,
)

FEW = BenchmarkConfig(warmup_iterations=1, benchmark_iterations=4, batch_sizes=[1, 3])


def test_models_are_timed_and_left_as_they_were():
    model = pf.nn.Sequential(pf.nn.Linear(4, 4), pf.nn.Dropout(0.5))
    seen = []
    model.register_forward_hook(lambda module, args, out: seen.append((module.training, list(args[0].shape))))
    runner = BenchmarkRunner(FEW)
    small, large = runner.run_model_benchmark("m", model, [4])
    assert [seen[0], seen[-1]] == [(False, [1, 4]), (False, [3, 4])]
    assert model.training
    assert (small.batch_size, large.batch_size, small.iterations) == (1, 3, 4)
    assert small.min_ms <= small.latency_ms <= small.p90_ms <= small.max_ms
    assert large.throughput == pytest.approx(3e3 / large.latency_ms)
    assert runner.report().results == [small, large]
    runner.clear_results()
    assert runner.results == []


def test_times_are_those_of_the_work():
    config = BenchmarkConfig(warmup_iterations=0, benchmark_iterations=3)
    begin = time.perf_counter()
    result = BenchmarkRunner(config).run_operation_benchmark("sleep", lambda x: (time.sleep(0.02), x)[1], [[2]])
    assert 20 <= result.latency_ms <= (time.perf_counter() - begin) * 1e3 / 2  # of three calls
    bounded = BenchmarkConfig(warmup_iterations=0, benchmark_iterations=1000, max_seconds=0.05)
    assert (
        BenchmarkRunner(bounded).run_operation_benchmark("s", lambda x: (time.sleep(0.02), x)[1], [[2]]).iterations < 10
    )


def test_other_precisions():
    model = pf.nn.Linear(4, 2)
    kinds = []

    def watched(module, args, out):
        kinds.append(args[0].dtype)

    model.register_forward_hook(watched)
    benchmark(model, [4], [2], iterations=1, precision="fp64", warmup_iterations=0)
    assert kinds == [pf.float64]
    assert model.weight.dtype is pf.float32
    with pytest.raises(ValueError, match="precision"):
        BenchmarkConfig(precision="fp1")
    with pytest.raises(ValueError, match="positive"):
        BenchmarkConfig(benchmark_iterations=0)


def test_reports_are_kept_and_compared(tmp_path):
    old = [BenchmarkResult.of("a", 1, [2.0, 2.0]), BenchmarkResult.of("b", 1, [1.0])]
    new = [BenchmarkResult.of("a", 1, [1.0]), BenchmarkResult.of("c", 1, [1.0])]
    report = BenchmarkReport("old", old, notes="n")
    back = BenchmarkReport.load_json(report.save_json(tmp_path / "r.json"))
    assert back == report
    found = compare_results(back.results, new)
    assert found == {"a/1": {"baseline": 2.0, "comparison": 1.0, "ratio": 0.5, "better": True}}
    assert compare_results(old, new, "throughput")["a/1"]["better"]
    with pytest.raises(ValueError, match="metric"):
        compare_results(old, new, "beauty")
    (tmp_path / "bad.json").write_text(json.dumps({"title": 3}))
    with pytest.raises(ValueError, match="no benchmark report"):
        BenchmarkReport.load_json(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="no times"):
        BenchmarkResult.of("x", 1, [])
    assert "a" in report.summary()


@pytest.mark.parametrize("name", ["mlp_small", "conv_small", "transformer_encoder"])
def test_models_for_benchmarks_run(name):
    info = get_benchmark_model_info(name)
    out = get_benchmark_model(name, num_classes=7).eval()(pf.tensor(np.ones((2, *info.input_shape), np.float32)))
    assert list(out.shape) == [2, 7]


def test_the_list_of_models():
    assert {info.category for info in list_benchmark_models()} == {"mlp", "vision", "text"}
    with pytest.raises(KeyError, match="mlp_small"):
        get_benchmark_model("nothing")
    with pytest.raises(ValueError, match="already"):
        register_benchmark_model(BenchmarkModelInfo("mlp_small", "", (1,)), lambda num_classes: None)


def test_blocks_are_timed(caplog):
    with caplog.at_level("INFO", "pyflame.benchmarks"), timed("nap") as elapsed:
        time.sleep(0.01)
    assert elapsed.ms >= 10
    assert "nap took" in caplog.text
