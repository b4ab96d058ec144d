"""Every layer against torch's: same weights, same outputs, same gradients, in float64."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")


class Case(NamedTuple):
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    call: dict[str, Any]

    def __str__(self):
        return f"{self.name}{self.args}{self.kwargs or ''}{self.shapes}"


def case(name, *args, shapes, call=None, **kwargs):
    return Case(name, args, kwargs, shapes, call or {})


LINEAR = [
    case("Linear", 5, 3, shapes=((4, 5),)),
    case("Linear", 5, 3, shapes=((5,),)),
    case("Linear", 5, 3, bias=False, shapes=((2, 4, 5),)),
    case("Bilinear", 3, 4, 5, shapes=((6, 3), (6, 4))),
    case("Flatten", shapes=((2, 3, 4),)),
    case("Unflatten", 1, (2, 3), shapes=((4, 6),)),
]
CONV = [
    case("Conv1d", 4, 6, 3, padding=1, shapes=((2, 4, 9),)),
    case("Conv1d", 4, 6, 3, shapes=((4, 9),)),
    case("Conv1d", 4, 6, 4, padding="same", dilation=2, shapes=((2, 4, 9),)),
    case("Conv2d", 3, 8, 3, stride=2, padding=1, shapes=((2, 3, 7, 8),)),
    case("Conv2d", 4, 8, (3, 2), groups=2, dilation=(2, 1), bias=False, shapes=((2, 4, 9, 6),)),
    case("Conv2d", 4, 4, 3, groups=4, padding=1, shapes=((1, 4, 5, 5),)),
    *[
        case("Conv2d", 3, 2, 3, padding=(1, 2), padding_mode=m, shapes=((1, 3, 6, 7),))
        for m in ("reflect", "replicate", "circular")
    ],
    case("Conv3d", 2, 3, 2, padding=1, shapes=((1, 2, 4, 3, 5),)),
    case("ConvTranspose1d", 4, 3, 3, stride=2, padding=1, output_padding=1, shapes=((2, 4, 5),)),
    case("ConvTranspose2d", 4, 6, 3, stride=2, groups=2, shapes=((1, 4, 4, 5),)),
    case("ConvTranspose2d", 2, 3, 3, dilation=2, shapes=((2, 4, 5),)),
    case("ConvTranspose3d", 2, 3, 2, stride=2, shapes=((1, 2, 2, 3, 2),)),
]
RESIZING = [
    case("Upsample", scale_factor=2, shapes=((1, 2, 3, 4),)),
    case("Upsample", None, 2, "bilinear", shapes=((1, 2, 3, 4),)),
    case("UpsamplingNearest2d", size=(6, 5), shapes=((1, 2, 3, 4),)),
    case("PixelShuffle", 2, shapes=((1, 8, 3, 2),)),
    case("PixelUnshuffle", 2, shapes=((1, 2, 4, 6),)),
    case("ChannelShuffle", 2, shapes=((2, 6, 3, 2),)),
    case("Unfold", (2, 3), dilation=2, padding=1, stride=2, shapes=((2, 3, 6, 8),)),
    case("ConstantPad1d", (1, 2), 3.5, shapes=((2, 3, 4),)),
    *[
        case(f"{m}Pad2d", (1, 2, 0, 1), shapes=((2, 3, 4, 5),))
        for m in ("Zero", "Reflection", "Replication", "Circular")
    ],
    case("ZeroPad3d", 1, shapes=((1, 2, 3, 2, 2),)),
    case("CosineSimilarity", 1, shapes=((3, 4), (3, 4))),
    case("PairwiseDistance", 3.0, keepdim=True, shapes=((3, 4), (3, 4))),
]
POOL = [
    case("MaxPool1d", 2, shapes=((2, 3, 9),)),
    case("MaxPool2d", 3, stride=2, padding=1, shapes=((2, 3, 7, 8),)),
    case("MaxPool2d", 2, ceil_mode=True, shapes=((2, 3, 7, 7),)),
    case("MaxPool2d", 2, dilation=2, stride=1, shapes=((1, 2, 6, 6),)),
    case("MaxPool3d", 2, shapes=((1, 2, 4, 4, 4),)),
    case("AvgPool1d", 3, stride=2, padding=1, shapes=((2, 3, 9),)),
    case("AvgPool2d", 3, stride=2, padding=1, count_include_pad=False, shapes=((2, 3, 7, 8),)),
    case("AvgPool2d", 3, stride=2, padding=1, ceil_mode=True, shapes=((1, 2, 8, 8),)),
    case("AvgPool2d", 2, divisor_override=3, shapes=((1, 2, 4, 4),)),
    case("AvgPool3d", 2, shapes=((1, 2, 4, 4, 4),)),
    case("AdaptiveAvgPool1d", 4, shapes=((2, 3, 9),)),
    case("AdaptiveAvgPool2d", (3, None), shapes=((2, 3, 7, 5),)),
    case("AdaptiveAvgPool2d", 1, shapes=((2, 3, 7, 5),)),
    case("AdaptiveAvgPool3d", 2, shapes=((1, 2, 4, 5, 6),)),
    case("AdaptiveMaxPool2d", (3, 2), shapes=((2, 3, 7, 5),)),
    case("LPPool2d", 2, 2, shapes=((1, 2, 4, 4),)),
]
NORM = [
    case("BatchNorm1d", 5, shapes=((6, 5),)),
    case("BatchNorm1d", 5, affine=False, shapes=((3, 5, 4),)),
    case("BatchNorm2d", 3, momentum=None, shapes=((2, 3, 4, 4),)),
    case("BatchNorm2d", 3, track_running_stats=False, shapes=((2, 3, 4, 4),)),
    case("BatchNorm3d", 3, shapes=((2, 3, 2, 3, 2),)),
    case("InstanceNorm1d", 3, affine=True, shapes=((2, 3, 5),)),
    case("InstanceNorm2d", 3, track_running_stats=True, shapes=((2, 3, 4, 4),)),
    case("LayerNorm", 6, shapes=((2, 3, 6),)),
    case("LayerNorm", (3, 6), elementwise_affine=False, shapes=((2, 3, 6),)),
    case("LayerNorm", 6, bias=False, shapes=((4, 6),)),
    case("RMSNorm", 6, shapes=((2, 3, 6),)),
    case("GroupNorm", 2, 4, shapes=((2, 4, 3, 3),)),
    case("GroupNorm", 2, 4, affine=False, shapes=((2, 4, 5),)),
    case("LocalResponseNorm", 3, shapes=((2, 5, 4, 4),)),
]
ACTIVATION = [
    *[case(n, shapes=((3, 6),)) for n in (
        "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "LogSigmoid", "Tanh",
        "Hardtanh", "Hardsigmoid", "Hardswish", "Softplus", "Softsign", "Softshrink", "Hardshrink", "Tanhshrink", "GLU",
        "PReLU",
    )],
    case("GELU", approximate="tanh", shapes=((3, 6),)),
    case("ELU", 0.5, shapes=((3, 6),)),
    case("Softplus", 2.0, 3.0, shapes=((3, 6),)),
    case("Threshold", 0.1, 20.0, shapes=((3, 6),)),
    case("PReLU", 6, shapes=((3, 6, 2),)),
    *[case(n, dim=1, shapes=((3, 6, 2),)) for n in ("Softmax", "LogSoftmax", "Softmin")],
    case("Softmax2d", shapes=((2, 3, 4, 4),)),
]  # fmt: skip
RECURRENT = [
    case("LSTM", 4, 5, shapes=((6, 3, 4),)),
    case("LSTM", 4, 5, num_layers=2, bidirectional=True, batch_first=True, shapes=((3, 6, 4),)),
    case("LSTM", 4, 5, bias=False, shapes=((6, 4),)),
    case("LSTM", 4, 5, 2, proj_size=3, bidirectional=True, shapes=((4, 3, 4),)),
    case("GRU", 4, 5, num_layers=2, shapes=((6, 3, 4),)),
    case("GRU", 4, 5, bidirectional=True, shapes=((6, 3, 4),)),
    case("RNN", 4, 5, nonlinearity="relu", shapes=((6, 3, 4),)),
    case("RNN", 4, 5, bidirectional=True, batch_first=True, shapes=((3, 6, 4),)),
    case("GRU", 4, 5, shapes=((6, 3, 4), (1, 3, 5))),
    case("LSTMCell", 4, 5, shapes=((3, 4),)),
    case("GRUCell", 4, 5, shapes=((3, 4), (3, 5))),
    case("RNNCell", 4, 5, shapes=((4,),)),
]
ATTENTION = [
    case("MultiheadAttention", 8, 2, shapes=((5, 3, 8), (6, 3, 8), (6, 3, 8))),
    case("MultiheadAttention", 8, 2, batch_first=True, kdim=4, vdim=6, shapes=((3, 5, 8), (3, 7, 4), (3, 7, 6))),
    case("MultiheadAttention", 8, 4, add_bias_kv=True, add_zero_attn=True, shapes=((5, 8), (6, 8), (6, 8))),
    case(
        "MultiheadAttention", 8, 2, bias=False,
        shapes=((5, 3, 8), (6, 3, 8), (6, 3, 8)), call={"average_attn_weights": False},
    ),
    *[case("TransformerEncoderLayer", 8, 2, 16, 0.0, batch_first=True, norm_first=f, activation=a, shapes=((3, 5, 8),))
      for f, a in ((False, "relu"), (True, "gelu"))],
    case("TransformerDecoderLayer", 8, 2, 16, 0.0, shapes=((5, 3, 8), (4, 3, 8))),
    case("Transformer", 8, 2, 1, 1, 16, 0.0, batch_first=True, shapes=((3, 5, 8), (3, 4, 8))),
]  # fmt: skip
CASES = LINEAR + CONV + RESIZING + POOL + NORM + ACTIVATION + RECURRENT + ATTENTION


def flat(outputs):
    if isinstance(outputs, tuple | list):
        return [leaf for part in outputs for leaf in flat(part)]
    return [] if outputs is None else [outputs]


def twins(one):
    """The two modules with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, one.name)(*one.args, **one.kwargs).double()
    ours = getattr(pf.nn, one.name)(*one.args, **one.kwargs)
    ours.double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def compare(ours, theirs, role, tolerance=1e-9):
    np.testing.assert_allclose(
        np.asarray(ours.numpy()), theirs.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=role
    )


@pytest.mark.parametrize("one", CASES, ids=str)
def test_layer_equals_torch(one):
    ours, theirs = twins(one)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape) for shape in one.shapes]
    mine = [pf.from_numpy(a).requires_grad_() for a in arrays]
    others = [torch.from_numpy(a).requires_grad_() for a in arrays]
    got, want = flat(ours(*mine, **one.call)), flat(theirs(*others, **one.call))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert list(g.shape) == list(w.shape)
        compare(g, w, "output")
    seeds = [rng.normal(size=tuple(w.shape)) for w in want]
    sum((g * pf.from_numpy(s)).sum() for g, s in zip(got, seeds, strict=True)).backward()
    sum((w * torch.from_numpy(s)).sum() for w, s in zip(want, seeds, strict=True)).backward()
    for x, y in zip(mine, others, strict=True):
        # torch's own gradient of hardsigmoid multiplies by 1/6 in single precision, whatever the input.
        compare(x.grad, y.grad, "gradient of the input", 1e-7 if one.name == "Hardsigmoid" else 1e-9)
    for (name, p), (other_name, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        compare(p.grad, q.grad, f"gradient of {name}", 1e-8)
    for (name, b), (_, c) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        compare(b, c, f"buffer {name}")


def second_order(library, grad, outputs, leaves, seeds, directions):
    """Gradients of the gradient along directions; zeros where nothing depends on a leaf."""
    make = pf.from_numpy if library is pf else torch.from_numpy
    loss = sum((y * y * make(s)).sum() for y, s in zip(outputs, seeds, strict=True))
    first = grad(loss, leaves, create_graph=True, allow_unused=True)
    along = sum((g * make(d)).sum() for g, d in zip(first, directions, strict=True) if g is not None)
    second = grad(along, leaves, allow_unused=True)
    return [np.zeros(tuple(x.shape)) if g is None else g.numpy() for g, x in zip(second, leaves, strict=True)]


def marked(one):
    """Two directions or layers of steps make graphs of thousands of operators."""
    many = one in RECURRENT and (one.kwargs.get("bidirectional") or "num_layers" in one.kwargs)
    return pytest.param(one, marks=pytest.mark.slow if many else ())


# torch has no second derivative of hardsigmoid.
@pytest.mark.parametrize("one", [marked(one) for one in CASES if one.name != "Hardsigmoid"], ids=str)
def test_second_derivatives_equal_torch(one):
    ours, theirs = twins(one)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape) for shape in one.shapes]
    mine = [pf.from_numpy(a).requires_grad_() for a in arrays]
    others = [torch.from_numpy(a).requires_grad_() for a in arrays]
    # The fused forms of torch's attention have no second derivatives.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        got, want = flat(ours(*mine, **one.call)), flat(theirs(*others, **one.call))
        seeds = [rng.normal(size=tuple(w.shape)) for w in want]
        mine, others = [*mine, *ours.parameters()], [*others, *theirs.parameters()]
        directions = [rng.normal(size=tuple(x.shape)) for x in others]
        theirs_second = second_order(torch, torch.autograd.grad, want, others, seeds, directions)
    ours_second = second_order(pf, pf.autograd.grad, got, mine, seeds, directions)
    for g, w in zip(ours_second, theirs_second, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(w).max()))


@pytest.mark.parametrize("one", NORM, ids=str)
def test_norms_in_evaluation(one):
    ours, theirs = twins(one)
    x = np.random.default_rng(2).normal(size=one.shapes[0])
    ours(pf.from_numpy(x)), theirs(torch.from_numpy(x))
    ours.eval(), theirs.eval()
    compare(ours(pf.from_numpy(x + 1)), theirs(torch.from_numpy(x + 1)), "output")


@pytest.mark.parametrize("one", CASES, ids=str)
def test_text_and_state_names_equal_torch(one):
    ours, theirs = (
        getattr(pf.nn, one.name)(*one.args, **one.kwargs),
        getattr(torch.nn, one.name)(*one.args, **one.kwargs),
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert {k: list(v.shape) for k, v in ours.state_dict().items()} == {
        k: list(v.shape) for k, v in theirs.state_dict().items()
    }


@pytest.mark.parametrize(
    "one",
    [c for c in CASES if c.name in ("Linear", "Conv2d", "ConvTranspose2d", "LSTM", "GRU", "MultiheadAttention")],
    ids=str,
)
def test_first_weights_have_torchs_spread(one):
    ours, theirs = (
        getattr(pf.nn, one.name)(*one.args, **one.kwargs),
        getattr(torch.nn, one.name)(*one.args, **one.kwargs),
    )
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        a, b = p.numpy(), q.detach().numpy()
        if a.size >= 30:
            assert np.abs(a).max() <= np.abs(b).max() * 1.6 + 1e-6, name
            assert 0.5 < (a.std() + 1e-9) / (b.std() + 1e-9) < 2, name


def test_masks_of_attention_equal_torch():
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    ours = pf.nn.MultiheadAttention(8, 2, batch_first=True).double()
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).normal(size=(3, 5, 8))
    causal = np.triu(np.ones((5, 5), bool), 1)
    padding = np.zeros((3, 5), bool)
    padding[0, 3:] = True
    a, b = pf.from_numpy(x), torch.from_numpy(x)
    got = ours(a, a, a, key_padding_mask=pf.from_numpy(padding), attn_mask=pf.from_numpy(causal))
    want = theirs(b, b, b, key_padding_mask=torch.from_numpy(padding), attn_mask=torch.from_numpy(causal))
    for g, w in zip(got, want, strict=True):
        compare(g, w, "masked")
    assert list(ours(a).shape) == [3, 5, 8]


def test_max_pool_indices_equal_torch():
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 8))
    got = pf.nn.functional.max_pool2d(pf.from_numpy(x), 2, return_indices=True)
    want = torch.nn.functional.max_pool2d(torch.from_numpy(x), 2, return_indices=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g.numpy(), w.numpy())
