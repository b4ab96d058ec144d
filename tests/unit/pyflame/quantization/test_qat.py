"""Quantization-aware training: rounding, straight-through gradients, ranges, and the int8 graph."""

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt
from pyflame import nn
from pyflame.data import load_digits
from pyflame.quantization import FakeQuantize, convert, fake_quantize, prepare_qat
from pyflame_rt.exporters.onnx import export_onnx
from pyflame_rt.graph import DType
from pyflame_rt.graph.errors import InputError


@pytest.mark.parametrize("channels", [True, False])
def test_values_and_gradients_are_torchs(channels):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 4)).astype(np.float32) * 3
    scale = np.float32([0.05, 0.01, 0.2, 0.03]) if channels else np.float32(0.02)
    zero = np.int8([0, 0, 0, 0]) if channels else np.int8(-30)
    x = pf.tensor(values, requires_grad=True)
    y = fake_quantize(x, pf.from_numpy(np.asarray(scale)), pf.from_numpy(np.asarray(zero)), 1)
    weight = rng.standard_normal((5, 4)).astype(np.float32)
    (y * pf.from_numpy(weight)).sum().backward()
    other = torch.tensor(values, requires_grad=True)
    if channels:
        theirs = torch.fake_quantize_per_channel_affine(
            other, torch.tensor(scale), torch.tensor(zero, dtype=torch.int32), 1, -128, 127
        )
    else:
        theirs = torch.fake_quantize_per_tensor_affine(other, float(scale), int(zero), -128, 127)
    (theirs * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(y.numpy(), theirs.detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(x.grad.numpy(), other.grad.numpy())
    assert 0 < np.count_nonzero(x.grad.numpy()) < x.grad.numpy().size


def test_ranges_run():
    layer = FakeQuantize(momentum=0.25)
    layer(pf.tensor([-2.0, 8.0]))
    layer(pf.tensor([-6.0, 0.0]))
    assert (layer.low.item(), layer.high.item()) == (-3.0, 6.0)
    layer.eval()
    layer(pf.tensor([100.0]))
    assert layer.high.item() == 6.0
    scale, zero = layer.parameters_of_range()
    want = pyflame_rt.quantization.QuantParams.compute_from_minmax(-3.0, 6.0, symmetric=False)
    assert (scale.item(), zero.item()) == (want.scales[0], want.zero_points[0])
    with pytest.raises(ValueError, match="momentum"):
        FakeQuantize(0)


def test_data_that_is_never_negative_uses_all_steps():
    layer = FakeQuantize()
    layer(pf.tensor([1.0, 5.0]))
    assert layer.parameters_of_range()[1].item() == -128
    zeros = FakeQuantize()
    np.testing.assert_array_equal(zeros(pf.zeros([3])).numpy(), np.zeros(3))


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip


def test_preparing_leaves_the_model_as_it_was():
    model = network()
    x = pf.randn([4, 1, 8, 8])
    before = model(x).numpy()
    made = prepare_qat(model, exclude=["6"])
    kinds = [type(m).__name__ for m in made]
    assert kinds == ["QATConv", "ReLU", "MaxPool2d", "Flatten", "QATLinear", "ReLU", "Linear"]
    np.testing.assert_array_equal(model(x).numpy(), before)
    error = np.abs(made(x).numpy() - before).max()
    assert 0 < error < 0.1 * np.abs(before).max()


def test_what_cannot_be_prepared():
    with pytest.raises(InputError, match="no layer 'lost'"):
        prepare_qat(network(), exclude=["lost"])
    with pytest.raises(InputError, match="no linear layer"):
        prepare_qat(nn.Sequential(nn.ReLU()))
    with pytest.raises(InputError, match="padding_mode"):
        prepare_qat(nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")))
    with pytest.raises(InputError, match="prepare_qat first"):
        convert(network(), pf.ones([1, 1, 8, 8]))
    with pytest.raises(InputError, match="'data' never saw data"):
        convert(prepare_qat(nn.Linear(3, 2)), pf.ones([1, 3]))


def trained(model, epochs, images, labels, lr=2e-3):
    optimizer, loss_of = pf.optim.Adam(model.parameters(), lr=lr), nn.CrossEntropyLoss()
    model.train()

    @pf.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    order = np.random.default_rng(0)
    for _ in range(epochs):
        for rows in order.permutation(1344).reshape(-1, 64):
            step(pf.from_numpy(images[rows]), pf.from_numpy(labels[rows]))
    return model


def test_a_model_learns_in_int8_and_runs_in_it(tmp_path):
    pf.manual_seed(0)
    digits = load_digits()
    real = trained(network(), 8, digits.train_images, digits.train_labels)
    model = trained(prepare_qat(real), 4, digits.train_images, digits.train_labels, lr=5e-4)
    x = pf.from_numpy(digits.test_images)
    graph = convert(model, x)
    stored = [t.dtype for t in graph.initializers.values() if t.ndim > 1]
    assert stored == [DType.Int8] * 3
    scores = pyflame_rt.InferenceSession(graph).run(None, {"input": digits.test_images})[0]
    own = model.eval()(x).numpy()
    assert (scores.argmax(1) == own.argmax(1)).mean() >= 0.99
    right = (scores.argmax(1) == digits.test_labels).mean()
    assert right >= (real.eval()(x).numpy().argmax(1) == digits.test_labels).mean() - 0.005
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(graph, tmp_path / "qat.onnx", opset=17)
    session = onnxruntime.InferenceSession(str(tmp_path / "qat.onnx"), providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"input": digits.test_images})[0]
    assert (theirs.argmax(1) == scores.argmax(1)).mean() >= 0.99
