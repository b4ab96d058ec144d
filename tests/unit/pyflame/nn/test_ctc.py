"""The CTC loss against torch's: lengths, layouts of targets, sequences without alignment, gradients."""

import itertools

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import InputError, ShapeMismatchError, UnsupportedOperatorError

torch = pytest.importorskip("torch")
T, N, C, S = 9, 4, 5, 3
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(T, N, C))
TARGETS = np.array([[1, 2, 2], [3, 3, 1], [4, 1, 0], [2, 0, 0]])
INPUTS, LENGTHS = np.array([9, 7, 9, 5]), np.array([3, 3, 2, 1])


def both(logits, targets, inputs, lengths, **settings):
    """Ours and torch's loss, and the gradients of the logits, once through log_softmax and once without."""
    found = []
    for softmax in (True, False):
        mine, theirs = pf.tensor(logits).requires_grad_(), torch.tensor(logits).requires_grad_()
        ours = pf.log_softmax(mine, dim=-1) if softmax else mine
        other = theirs.log_softmax(-1) if softmax else theirs
        got = pf.nn.functional.ctc_loss(ours, pf.tensor(targets), pf.tensor(inputs), pf.tensor(lengths), **settings)
        want = torch.nn.functional.ctc_loss(
            other, torch.tensor(targets), torch.tensor(inputs), torch.tensor(lengths), **settings
        )
        got.sum().backward(), want.sum().backward()
        found.append((got.numpy(), want.detach().numpy(), mine.grad.numpy(), theirs.grad.numpy()))
    return found


def agree(*args, **settings):
    for got, want, mine, theirs in both(*args, **settings):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-10)
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("blank", [0, 4])
def test_losses_and_gradients_equal_torch(reduction, blank):
    targets = TARGETS if blank == 0 else (TARGETS - 1) % C
    agree(LOGITS, targets, INPUTS, LENGTHS, reduction=reduction, blank=blank)


def test_targets_in_a_row():
    flat = np.concatenate([row[:n] for row, n in zip(TARGETS, LENGTHS, strict=True)])
    agree(LOGITS, flat, INPUTS, LENGTHS, reduction="none")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_sequence_without_a_batch(reduction):
    agree(LOGITS[:, 0], TARGETS[0], np.array(9), np.array(3), reduction=reduction)


@pytest.mark.parametrize("zero_infinity", [True, False])
def test_sequences_too_short_for_their_labels(zero_infinity):
    # The repeated label needs a blank between: three labels in three steps do not fit.
    agree(LOGITS, TARGETS, np.array([3, 3, 9, 1]), LENGTHS, reduction="none", zero_infinity=zero_infinity)


def test_nothing_to_say():
    agree(LOGITS, TARGETS, INPUTS, np.array([0, 3, 0, 1]), reduction="mean")
    agree(LOGITS, np.zeros((N, 0), np.int64), INPUTS, np.zeros(N, np.int64), reduction="none")


def test_the_loss_is_the_sum_over_all_alignments():
    scores = np.log(RNG.dirichlet(np.ones(3), size=4))

    def collapsed(path):
        return [label for label, _ in itertools.groupby(path) if label]

    paths = [p for p in itertools.product(range(3), repeat=4) if collapsed(p) == [1, 2]]
    want = -np.log(sum(np.exp(sum(scores[t, c] for t, c in enumerate(path))) for path in paths))
    got = pf.nn.functional.ctc_loss(pf.tensor(scores), pf.tensor([1, 2], dtype=pf.int64), [4], [2], reduction="sum")
    assert got.item() == pytest.approx(want, rel=1e-12)


def test_the_module_trains_in_float32_when_compiled():
    pf.manual_seed(0)
    layer, loss = pf.nn.Linear(6, C), pf.nn.CTCLoss(zero_infinity=True)
    optimizer = pf.optim.Adam(layer.parameters(), lr=0.05)
    x, targets = pf.randn([T, N, 6]), pf.tensor(TARGETS)
    inputs, lengths = pf.tensor(INPUTS), pf.tensor(LENGTHS)

    @pf.compile
    def step(x):
        value = loss(pf.log_softmax(layer(x), dim=-1), targets, inputs, lengths)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value

    losses = [step(x).item() for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    assert repr(loss) == "CTCLoss(zero_infinity=True)"


def test_half_precision_is_rounded_once():
    scores = torch.tensor(LOGITS).log_softmax(-1).bfloat16()
    mine = pf.tensor(scores)
    got = pf.nn.functional.ctc_loss(mine, pf.tensor(TARGETS), INPUTS, LENGTHS, reduction="none")
    want = torch.nn.functional.ctc_loss(
        scores.double(), torch.tensor(TARGETS), torch.tensor(INPUTS), torch.tensor(LENGTHS), reduction="none"
    )
    assert got.dtype is pf.bfloat16
    np.testing.assert_allclose(got.numpy().astype(float), want.numpy(), rtol=2**-8)


def test_what_does_not_fit_is_named():
    scores, targets = pf.tensor(LOGITS), pf.tensor(TARGETS)
    loss = pf.nn.functional.ctc_loss
    with pytest.raises(ValueError, match="blank"):
        loss(scores, targets, INPUTS, LENGTHS, blank=5)
    with pytest.raises(ShapeMismatchError, match="input_lengths"):
        loss(scores, targets, [9], LENGTHS)
    with pytest.raises(ShapeMismatchError, match="log_probs"):
        loss(scores[0, 0], targets, INPUTS, LENGTHS)
    with pytest.raises(TypeError, match="whole numbers"):
        loss(scores, targets.float(), INPUTS, LENGTHS)
    with pytest.raises(InputError, match="input lengths must be from 0 to 9"):
        loss(scores, targets, [10, 9, 9, 9], LENGTHS).numpy()
    with pytest.raises(InputError, match="targets must be within 5 classes"):
        loss(scores, targets + 3, INPUTS, LENGTHS).numpy()
    with pytest.raises(InputError, match="add up to 9"):
        loss(scores, pf.tensor([1, 2], dtype=pf.int64), INPUTS, LENGTHS).numpy()
    with pytest.raises(ValueError, match="average"):
        loss(scores, targets, INPUTS, LENGTHS, reduction="average")
    mine = pf.tensor(LOGITS).requires_grad_()
    value = loss(mine, targets, INPUTS, LENGTHS)
    (first,) = pf.autograd.grad(value, mine, create_graph=True)
    with pytest.raises(UnsupportedOperatorError, match="CTCLossGrad has no gradient"):
        pf.autograd.grad(first.sum(), mine)
