"""Models exported for any size of some axes, run by two runtimes and compared with the model itself."""

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame import models, nn
from pyflame.dynamic import axes_of
from pyflame_rt.graph.errors import UnsupportedOperatorError

ort = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
BATCH = {"input": {0: "batch"}}
BOTH = {"input": {0: "batch", 1: "time"}}


def real(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def tokens(*shape):
    return RNG.integers(0, 50, shape)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def gpt():
    return models.GPT2(models.GPT2Config(vocab_size=50, n_layer=2, n_head=2, n_embd=16, n_positions=16))


def small_conv():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (1, 4), BATCH, [(1, 4), (17, 4)]),
    "convolution": (small_conv, (1, 3, 8, 8), BATCH, [(1, 3, 8, 8), (5, 3, 8, 8)]),
    "any image": (lambda: small_conv(), (1, 3, 8, 8), {"input": {0: "n", 2: "h", 3: "w"}}, [(2, 3, 6, 9)]),
    "lstm": (Recurrent, (1, 6, 4), BOTH, [(1, 6, 4), (4, 9, 4), (2, 1, 4)]),
    "gpt": (gpt, (1, 8), BOTH, [(1, 8), (3, 5), (2, 16)]),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1),
        (1, 5, 16), BOTH, [(2, 7, 16), (1, 1, 16)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_two_runtimes_agree_with_the_model_for_several_sizes(name, tmp_path):
    make, example, axes, shapes = CASES[name]
    model, fill = make().eval(), tokens if name == "gpt" else real
    path = pf.export(model, fill(*example), tmp_path / "model.onnx", dynamic_axes=axes)
    theirs, ours = ort.InferenceSession(path), pyflame_rt.InferenceSession(path)
    assert theirs.get_inputs()[0].shape[0] in ("batch", "n")
    assert theirs.get_outputs()[0].shape[0] in ("batch", "n")
    for shape in shapes:
        x = fill(*shape)
        want = model(pf.tensor(x)).numpy()
        for session in (theirs, ours):
            np.testing.assert_allclose(session.run(None, {"input": x})[0], want, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_resnet_for_any_batch(tmp_path):
    model = models.resnet18(num_classes=10).eval()
    path = pf.export(model, real(1, 3, 32, 32), tmp_path / "model.onnx", dynamic_axes=BATCH)
    for size in (1, 3, 8):
        x = real(size, 3, 32, 32)
        for session in (ort.InferenceSession(path), pyflame_rt.InferenceSession(path)):
            np.testing.assert_allclose(
                session.run(None, {"input": x})[0], model(pf.tensor(x)).numpy(), rtol=1e-3, atol=1e-3
            )


def test_the_native_format_takes_them_too(tmp_path):
    model = nn.Linear(3, 2)
    path = pf.export(model, real(2, 3), tmp_path / "model.pfm", dynamic_shapes=({0: "batch"},))
    session = pyflame_rt.InferenceSession(path)
    for size in (1, 2, 9):
        x = real(size, 3)
        np.testing.assert_allclose(
            session.run(None, {"input": x})[0], model(pf.tensor(x)).numpy(), rtol=1e-4, atol=1e-5
        )


def test_sizes_become_numbers_of_the_graph(tmp_path):
    def model(x, y):
        n = x.shape[0]
        flat = (x[1:, ::2] + pf.arange(x.shape[1], dtype=pf.float32)[::2]) * n
        return flat.reshape([(n - 1) * 3]), y.reshape([n * 2, -1]), pf.zeros([n, 2]) + 1.0

    shapes = ({0: "n"}, ("n", None))
    path = pf.export(
        model, (real(4, 6), real(4, 8)), tmp_path / "m.onnx", input_names=["x", "y"], dynamic_shapes=shapes
    )
    for n in (2, 4, 7):
        feeds = {"x": real(n, 6), "y": real(n, 8)}
        want = [t.numpy() for t in model(*map(pf.tensor, feeds.values()))]
        for session in (ort.InferenceSession(path), pyflame_rt.InferenceSession(path)):
            for got, expected in zip(session.run(None, feeds), want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_what_depends_on_sizes_in_another_way_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedOperatorError, match=r"Mul.*batch"):
        pf.export(lambda x: x * float(np.sqrt(x.shape[0])), real(4, 6), tmp_path / "m.onnx", dynamic_axes=BATCH)

    def branching(x):
        return x if x.shape[0] > 5 else pf.relu(x) + 1.0

    with pytest.raises(UnsupportedOperatorError, match="other things for other sizes"):
        pf.export(branching, real(4, 6), tmp_path / "m.onnx", dynamic_axes=BATCH)

    def fixed(x):
        return x + pf.tensor(np.ones((4, 6), np.float32))

    with pytest.raises(ValueError, match="no other size of 'batch' than 4"):
        pf.export(fixed, real(4, 6), tmp_path / "m.onnx", dynamic_axes=BATCH)
    assert not list(tmp_path.iterdir())


def test_axes_are_checked(tmp_path):
    names, shapes = ["x", "y"], [(2, 3), (2, 5)]
    assert axes_of({"x": {0: "b", -1: "c"}, "y": {0: "b"}}, names, shapes) == {"b": [(0, 0), (1, 0)], "c": [(0, 1)]}
    assert axes_of([None, [1]], names, shapes) == {"y_axis_1": [(1, 1)]}
    for given, message in (
        ({"z": {0: "b"}}, "no input or output 'z'"),
        ({"x": {2: "b"}}, "no axis 2"),
        ({"x": {0: "b"}, "y": {1: "b"}}, "different sizes"),
        ({"x": {0: 3}}, "called by a text"),
        ([{0: "b"}], "for 2 inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            axes_of(given, names, shapes)
    with pytest.raises(ValueError, match="give one of them"):
        pf.export(nn.ReLU(), real(2), tmp_path / "m.onnx", dynamic_axes=BATCH, dynamic_shapes=[{0: "b"}])
