"""The inference engine: answers, parts, memory, statistics, threads."""

import threading

import numpy as np
import pytest

import pyflame as pf
from pyflame.serving import InferenceConfig, InferenceEngine

X = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


def model():
    pf.manual_seed(0)
    return pf.nn.Sequential(pf.nn.Linear(4, 8), pf.nn.BatchNorm1d(8), pf.nn.Dropout(0.5), pf.nn.Linear(8, 2))


@pytest.mark.parametrize("settings", [{}, {"max_batch_size": 3}, {"num_threads": 1}, {"enable_caching": True}], ids=str)
def test_answers_are_the_models(settings):
    net = model()
    engine = InferenceEngine(net, InferenceConfig(**settings))
    engine.warmup(X)
    want = net.eval()(pf.from_numpy(X)).numpy()
    net.train()
    for _ in range(2):
        answer = engine.infer(pf.from_numpy(X))
        assert answer.is_evaluated()
        np.testing.assert_allclose(answer.numpy(), want, rtol=1e-5, atol=1e-6)
    assert net.training


def test_half_precision_is_close():
    net = model()
    engine = InferenceEngine(net, InferenceConfig(enable_fp16=True))
    np.testing.assert_allclose(engine.infer(X).numpy(), net.eval()(pf.from_numpy(X)).numpy(), rtol=2e-2, atol=2e-2)
    assert engine.infer(X).dtype == pf.float32


def test_memory_and_statistics():
    engine = InferenceEngine(model(), InferenceConfig(enable_caching=True, cache_size=1))
    for batch in (X, X, X + 1, X):
        engine.infer(batch)
    stats = engine.get_stats()
    assert (stats.total_requests, stats.cache_hits, stats.cache_misses) == (4, 1, 3)
    assert stats.cache_hit_rate == 0.25
    assert stats.throughput > 0
    engine.reset_stats()
    assert engine.get_stats().total_requests == 0
    assert engine.get_info()["parameters"] == 4 * 8 + 8 + 16 + 8 * 2 + 2


def test_new_weights_are_used():
    net = pf.nn.Linear(1, 1, bias=False)
    engine = InferenceEngine(net)
    engine.infer(np.ones((1, 1), np.float32))
    net.load_state_dict({"weight": np.full((1, 1), 5.0, np.float32)})
    assert engine.infer(np.ones((1, 1), np.float32)).item() == 5.0


def test_many_threads_ask_at_once():
    engine = InferenceEngine(model().eval())
    want, wrong = engine.infer(X).numpy(), []

    def ask():
        sizes = [1, 5, 10, 5]
        close = [np.allclose(engine.infer(X[:n]).numpy(), want[:n], rtol=1e-4, atol=1e-5) for n in sizes]
        wrong.extend(n for n, right in zip(sizes, close, strict=True) if not right)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="cache_size"):
        InferenceConfig(cache_size=0)
    with pytest.raises(TypeError, match="called"):
        InferenceEngine(3)
