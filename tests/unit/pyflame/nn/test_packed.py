"""Packed sequences, and recurrent layers over them, against torch."""

import numpy as np
import pytest

import pyflame as pf
from pyflame.nn.utils import rnn
from pyflame_rt.graph.errors import ShapeMismatchError

torch = pytest.importorskip("torch")
theirs = torch.nn.utils.rnn
RNG = np.random.default_rng(0)
SORTED, MIXED, EQUAL = np.array([5, 3, 3, 1]), np.array([2, 5, 1, 4]), np.array([5, 5, 5, 5])
PADDED = RNG.normal(size=(5, 4, 3))


def same(ours, other):
    np.testing.assert_allclose(ours.numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-12)


def same_packs(ours, other):
    for mine, their in zip(ours, other, strict=True):
        assert (mine is None) == (their is None)
        if mine is not None:
            assert mine.dtype.name == str(their.dtype).removeprefix("torch.")
            same(mine, their)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("lengths", [SORTED, MIXED, EQUAL], ids=["sorted", "mixed", "equal"])
def test_packing_and_filling_equal_torch(lengths, batch_first):
    values = PADDED.swapaxes(0, 1).copy() if batch_first else PADDED
    mine, other = pf.tensor(values).requires_grad_(), torch.tensor(values).requires_grad_()
    enforced = bool(np.all(lengths[1:] <= lengths[:-1]))
    ours = rnn.pack_padded_sequence(mine, pf.tensor(lengths), batch_first, enforced)
    want = theirs.pack_padded_sequence(other, torch.tensor(lengths), batch_first, enforced)
    same_packs(ours, want)
    for total in (None, 7):
        got = rnn.pad_packed_sequence(ours, batch_first, -1.5, total)
        their = theirs.pad_packed_sequence(want, batch_first, -1.5, total)
        same(got[0], their[0])
        assert got[1].numpy().tolist() == their[1].tolist()
    (got[0] ** 2).sum().backward(), (their[0] ** 2).sum().backward()
    same(mine.grad, other.grad)


def test_lists_of_sequences():
    arrays = [RNG.normal(size=(n, 2)) for n in (2, 4, 1)]
    ours, other = [pf.tensor(a) for a in arrays], [torch.tensor(a) for a in arrays]
    packed, want = rnn.pack_sequence(ours, enforce_sorted=False), theirs.pack_sequence(other, enforce_sorted=False)
    same_packs(packed, want)
    for got, array in zip(rnn.unpack_sequence(packed), arrays, strict=True):
        np.testing.assert_array_equal(got.numpy(), array)
    for side in ("left", "right"):
        same(
            rnn.pad_sequence(ours, padding_value=9.0, padding_side=side),
            theirs.pad_sequence(other, padding_value=9.0, padding_side=side),
        )
    padded = rnn.pad_sequence(ours, batch_first=True)
    for got, array in zip(rnn.unpad_sequence(padded, [2, 4, 1], batch_first=True), arrays, strict=True):
        np.testing.assert_array_equal(got.numpy(), array)
    assert packed.float().data.dtype is pf.float32
    assert packed.double().cpu().half().data.dtype is pf.float16
    assert not packed.is_cuda
    again = rnn.PackedSequence(packed.data, packed.batch_sizes, packed.sorted_indices)
    assert again.unsorted_indices.numpy().tolist() == packed.unsorted_indices.numpy().tolist()
    assert pf.nn.utils.pad_sequence is rnn.pad_sequence


LAYERS = [
    ("LSTM", {}),
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("LSTM", {"bias": False}),
    ("LSTM", {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
    ("GRU", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {}),
    ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
    ("RNN", {}),
]


RUNS = [(*layer, True, MIXED) for layer in LAYERS]
RUNS += [(*LAYERS[0], False, SORTED), (*LAYERS[0], True, EQUAL), (*LAYERS[4], False, SORTED), (*LAYERS[6], True, EQUAL)]


@pytest.mark.parametrize(("kind", "settings", "with_state", "lengths"), RUNS)
def test_layers_equal_torch(kind, settings, with_state, lengths):
    torch.manual_seed(0)
    other = getattr(torch.nn, kind)(3, 4, **settings).double()
    ours = getattr(pf.nn, kind)(3, 4, **settings, dtype=pf.float64)
    ours.load_state_dict(other.state_dict())
    mine, their = pf.tensor(PADDED).requires_grad_(), torch.tensor(PADDED).requires_grad_()
    count = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    widths = [settings.get("proj_size") or 4, 4][: 2 if kind == "LSTM" else 1]
    arrays = [RNG.normal(size=(count, 4, width)) for width in widths]
    first = [pf.tensor(a).requires_grad_() for a in arrays]
    second = [torch.tensor(a).requires_grad_() for a in arrays]
    packed = rnn.pack_padded_sequence(mine, lengths, enforce_sorted=False)
    want_packed = theirs.pack_padded_sequence(their, torch.tensor(lengths), enforce_sorted=False)
    states = ([], []) if not with_state else ([tuple(first)], [tuple(second)]) if kind == "LSTM" else (first, second)
    y, last = ours(packed, *states[0])
    want, want_last = other(want_packed, *states[1])
    same_packs(y, want)
    total, want_total = (y.data**2).sum(), (want.data**2).sum()
    for got, expected in zip(*((last, want_last) if kind == "LSTM" else ([last], [want_last])), strict=True):
        same(got, expected)
        total, want_total = total + (got**3).sum(), want_total + (expected**3).sum()
    total.backward(), want_total.backward()
    same(mine.grad, their.grad)
    for parameter, expected in zip(ours.parameters(), other.parameters(), strict=True):
        same(parameter.grad, expected.grad)
    for state, expected in zip(first, second, strict=True):
        if with_state:
            same(state.grad, expected.grad)


def test_float32_and_half_run_packed():
    for dtype in (pf.float32, pf.float16):
        layer = pf.nn.LSTM(3, 4, bidirectional=True, dtype=dtype)
        y, (h, c) = layer(rnn.pack_padded_sequence(pf.tensor(PADDED).to(dtype), MIXED, enforce_sorted=False))
        assert y.data.shape == [12, 8]
        assert h.dtype is c.dtype is dtype
        for number, length in enumerate(MIXED):
            alone, (h1, c1) = layer(pf.tensor(PADDED[:length, number]).to(dtype))
            tolerance = 1e-6 if dtype is pf.float32 else 2e-3
            np.testing.assert_allclose(h[:, number].numpy(), h1.numpy(), rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(c[:, number].numpy(), c1.numpy(), rtol=tolerance, atol=tolerance)
            got = rnn.pad_packed_sequence(y)[0][:length, number]
            np.testing.assert_allclose(got.numpy(), alone.numpy(), rtol=tolerance, atol=tolerance)


def test_dropout_between_layers_stays_random_while_training():
    layer = pf.nn.GRU(3, 4, num_layers=2, dropout=0.5)
    packed = rnn.pack_padded_sequence(pf.tensor(PADDED).float(), SORTED)
    assert not np.array_equal(layer(packed)[0].data.numpy(), layer(packed)[0].data.numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(packed)[0].data.numpy(), layer(packed)[0].data.numpy())


def test_bad_lengths_are_refused():
    x = pf.tensor(PADDED)
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        rnn.pack_padded_sequence(x, MIXED)
    with pytest.raises(RuntimeError, match="greater than 0"):
        rnn.pack_padded_sequence(x, [5, 3, 1, 0])
    with pytest.raises(RuntimeError, match="batch_size=4"):
        rnn.pack_padded_sequence(x, [5, 3])
    with pytest.raises(RuntimeError, match="more than the 5 steps"):
        rnn.pack_padded_sequence(x, [6, 3, 3, 1])
    with pytest.raises(TypeError, match="whole numbers"):
        rnn.pack_padded_sequence(x, [5.0, 3.0, 3.0, 1.0])
    packed = rnn.pack_padded_sequence(x, SORTED)
    with pytest.raises(ValueError, match="total_length=4"):
        rnn.pad_packed_sequence(packed, total_length=4)
    with pytest.raises(ShapeMismatchError, match="must be 7"):
        pf.nn.LSTM(7, 2)(packed)
    with pytest.raises(ShapeMismatchError, match="hidden size"):
        pf.nn.GRU(3, 2, dtype=pf.float64)(packed, pf.zeros([1, 3, 2], dtype=pf.float64))
    with pytest.raises(ValueError, match="batch_sizes"):
        rnn.PackedSequence(x)
    with pytest.raises(ValueError, match="padding_side"):
        rnn.pad_sequence([x], padding_side="top")
    with pytest.raises(RuntimeError, match="empty list"):
        rnn.pad_sequence([])
