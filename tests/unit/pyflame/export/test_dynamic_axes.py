"""Models exported for any size of some axes, run by two runtimes and compared with the model itself."""

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame import models, nn
from pyflame.size_names import dynamic_axes
from pyflame_rt.graph.errors import ShapeMismatchError, UnsupportedOperatorError

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
    found = dynamic_axes({"x": {0: "b", -1: ("c", 2, 4)}, "y": {0: "b"}}, names, shapes)
    assert found == ({"b": [(0, 0), (1, 0)], "c": [(0, 1)]}, {"c": (2, 4)})
    assert dynamic_axes([None, [1]], names, shapes).axes == {"y_axis_1": [(1, 1)]}
    for given, message in (
        ({"z": {0: "b"}}, "no input or output 'z'"),
        ({"x": {2: "b"}}, "no axis 2"),
        ({"x": {0: "b"}, "y": {1: "b"}}, "different sizes"),
        ({"x": {0: 3}}, "called by a text"),
        ([{0: "b"}], "for 2 inputs"),
        ({"x": {0: ("b", 3, 8)}}, "2 in the example, and from 3 to 8"),
        ({"x": {0: ("b", 1, 8)}, "y": {0: ("b", 2, 8)}}, "two bounds"),
        ({"x": {0: ("b", 8, 1)}}, "bounds of 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            dynamic_axes(given, names, shapes)
    with pytest.raises(ValueError, match="give one of them"):
        pf.export(nn.ReLU(), real(2), tmp_path / "m.onnx", dynamic_axes=BATCH, dynamic_shapes=[{0: "b"}])


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Linear(3, 2)

    def forward(self, x, scale=None, *, bias=None):
        y = self.product(x)
        y = y if scale is None else y * scale
        return y if bias is None else y + bias


@pytest.mark.parametrize("suffix", [".onnx", ".pfm"])
@pytest.mark.parametrize("torch_dim", [False, True])
def test_bounds_are_kept_and_checked(torch_dim, suffix, tmp_path):
    size = ("batch", 2, 8)
    if torch_dim:
        torch = pytest.importorskip("torch")
        size = torch.export.Dim("batch", min=2, max=8)
    path = pf.export(Scaled(), real(2, 3), tmp_path / f"m{suffix}", input_names=["x"], dynamic_axes={"x": {0: size}})
    session = pyflame_rt.InferenceSession(path)
    for rows in (2, 8):
        assert session.run(None, {"x": real(rows, 3)})[0].shape == (rows, 2)
    for rows in (1, 9):
        with pytest.raises(ShapeMismatchError, match=rf"'x' has batch = {rows} \(axis 0\).*2 to 8"):
            session.run(None, {"x": real(rows, 3)})


def shapes_in(path):
    return [info.shape for info in ort.InferenceSession(str(path)).get_inputs()]


def test_sizes_by_parameter_and_in_the_structure_of_arguments(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.onnx"
    pf.onnx.export(Scaled(), (real(2, 3),), path, dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    assert shapes_in(path) == [["input_axis_0", 3]]
    example = ({"u": pf.ones([2, 3]), "v": [pf.ones([2, 3])]},)
    pf.export(lambda z: z["u"] + z["v"][0], example, path, dynamic_shapes=({"u": {0: "n"}, "v": [{0: "n"}]},))
    assert shapes_in(path) == [["n", 3], ["n", 3]]
    with pytest.raises(ValueError, match="parameters of the model: x, scale, bias"):
        pf.onnx.export(Scaled(), (real(2, 3),), path, dynamic_shapes={"z": {0: "n"}})


def test_arguments_by_name_and_torchs_other_options(tmp_path):
    path, model, x, bias = tmp_path / "m.onnx", Scaled(), pf.ones([2, 3]), pf.ones([2])
    pf.onnx.export(
        model, (x,), path, kwargs={"bias": bias}, input_names=["x", "bias"], do_constant_folding=True, verbose=False,
        keep_initializers_as_inputs=False, dynamic_axes={"x": [0]},
    )  # fmt: skip
    found = ort.InferenceSession(str(path)).run(
        None, {"x": np.ones((5, 3), np.float32), "bias": np.ones(2, np.float32)}
    )
    np.testing.assert_allclose(found[0], model(pf.ones([5, 3]), bias=bias).detach().numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="keep_initializers_as_inputs=True"):
        pf.onnx.export(model, (x,), path, keep_initializers_as_inputs=True)
    with pytest.raises(TypeError, match="no argument 'scales'"):
        pf.onnx.export(model, (x,), path, kwargs={"scales": x})
