"""Real trained models as programs that serve use them: step by step, and in batches of mixed lengths."""

from collections.abc import Callable

import numpy as np
import pytest

from pyflame_rt import InferenceSession
from pyflame_rt.batching import BatchConfig, DynamicBatcher
from pyflame_rt.streaming import StreamingInference


@pytest.mark.parametrize(("name", "rate", "frame"), [("silero_vad.onnx", 16000, 576), ("silero_vad.onnx", 8000, 288)])
def test_voice_activity_with_its_state(member: Callable[[str, str], bytes], name, rate, frame):
    ort = pytest.importorskip("onnxruntime")
    model = member("silero_vad", name)
    other = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(5)
    frames = (0.3 * rng.standard_normal((20, 1, frame))).astype(np.float32)
    stream, state = StreamingInference(InferenceSession(model)), np.zeros((2, 1, 128), np.float32)
    stream.start({"sr": np.array(rate, np.int64)})
    assert stream.input_name == "input"
    for part in frames:
        expected, state = other.run(None, {"input": part, "state": state, "sr": np.array(rate, np.int64)})
        np.testing.assert_allclose(stream.step(part), expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(stream.state["state"], state, rtol=1e-3, atol=1e-4)


def test_sentences_of_mixed_lengths_share_runs(minilm: Callable[[bool], bytes]):
    session = InferenceSession(minilm(False))
    rng = np.random.default_rng(6)
    sentences = [rng.integers(1000, 20000, (1, n)) for n in rng.integers(5, 64, 40)]
    feeds = [{"input_ids": ids, "token_type_ids": np.zeros_like(ids)} for ids in sentences]
    config = BatchConfig(max_batch_size=8, preferred_sizes=[1, 4, 8], length_buckets=[16, 32, 64])
    with DynamicBatcher(session, config) as batcher:
        answers = [future.result() for future in [batcher.submit(feed) for feed in feeds]]  # the mask is made
    for feed, answer in zip(feeds, answers, strict=True):
        (alone,) = session.run(None, {**feed, "attention_mask": np.ones_like(feed["input_ids"])})
        np.testing.assert_allclose(answer["embedding"], alone, rtol=1e-3, atol=1e-4)
    assert batcher.get_stats().avg_batch_size > 2
