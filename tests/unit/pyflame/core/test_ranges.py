"""Classes, indices and probabilities that name nothing are refused: at once, when computed, and in replays."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
F = "nn.functional."
SCORES = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
# Calls that torch refuses: what to call with which values; whole lists become tensors.
REFUSED = [
    (F + "cross_entropy", SCORES, [0, 3]),
    (F + "cross_entropy", SCORES, [0, -1]),
    (F + "cross_entropy", SCORES, [0.0, 1.0]),
    (F + "cross_entropy", SCORES, [True, False]),
    (F + "cross_entropy", SCORES, [0, 1], [1.0, 1.0]),
    (F + "nll_loss", SCORES, [0, 3]),
    (F + "nll_loss", SCORES, [0, -1]),
    (F + "nll_loss", SCORES, [0.0, 1.0]),
    (F + "multi_margin_loss", SCORES, [0, 3]),
    (F + "multi_margin_loss", SCORES, [[0], [1]]),
    (F + "one_hot", [0, 3], 3),
    (F + "one_hot", [0, -1], 3),
    (F + "one_hot", [0.0, 1.0], 3),
    (F + "embedding", [0, 3], [[1.0], [2.0], [3.0]]),
    (F + "embedding", [-1], [[1.0], [2.0], [3.0]]),
    (F + "embedding", [0.0], [[1.0], [2.0], [3.0]]),
    (F + "embedding_bag", [[-1]], [[1.0], [2.0], [3.0]]),
    ("index_select", SCORES, 1, [0, 3]),
    ("index_select", SCORES, 1, [0, -1]),
    ("gather", SCORES, 1, [[0, 3]]),
    ("gather", SCORES, 1, [[0, -1]]),
    ("scatter", SCORES, 1, [[0, -1]], 9.0),
    ("scatter", SCORES, 1, [[0, 1]], [[9, 9]]),
    ("scatter_add", SCORES, 1, [[0, -1]], [[1.0, 1.0]]),
    ("index_add", SCORES, 1, [0, -1], [[1.0, 1.0], [1.0, 1.0]]),
    ("index_add", SCORES, 1, [0, 1], [[1, 1], [1, 1]]),
    ("index_copy", SCORES, 1, [0, -1], [[1.0, 1.0], [1.0, 1.0]]),
    ("bernoulli", [0.5, 1.5]),
    ("bernoulli", [-0.5, 0.5]),
    ("bernoulli", [float("nan"), 0.5]),
    ("multinomial", [-0.1, 0.2], 1),
    ("multinomial", [float("nan"), 0.2], 1),
    ("multinomial", [0.0, 0.0], 1),
    ("multinomial", [0.5, 0.5], 0),
    ("normal", [0.0, 0.0], [1.0, -1.0]),
    (F + "binary_cross_entropy", [1.5], [1.0]),
    (F + "gaussian_nll_loss", [1.0], [1.0], [-1.0]),
    ("lerp", [1.0, 2.0], [1, 2], 0.5),
    ("tensordot", SCORES, [[1], [2], [3]], 1),
    ("inner", [1.0, 2.0], [1, 2]),
    ("cross", [1.0, 2.0, 3.0], [1, 2, 3]),
    ("cdist", SCORES, [[1, 2, 3]]),
]
ERRORS = (IndexError, RuntimeError, ValueError, TypeError, NotImplementedError)


def called(t, name, values, change=lambda x: x):
    function = t
    for part in name.split("."):
        function = getattr(function, part)
    result = function(*[change(t.tensor(v)) if isinstance(v, list) else v for v in values])
    return result.numpy()


def label(case):
    return f"{case[0].removeprefix(F)} {' '.join(map(str, case[1:]))}"


@pytest.mark.parametrize("case", REFUSED, ids=label)
def test_what_torch_refuses(case):
    name, *values = case
    with pytest.raises(ERRORS):
        called(torch, name, values)
    with pytest.raises(ERRORS):
        called(pf, name, values)
    with pytest.raises(ERRORS):  # values that are only known once they are computed
        called(pf, name, values, lambda x: (x.float() + 0).to(x.dtype))


def test_errors_name_the_number_and_the_limits():
    with pytest.raises(IndexError, match=r"target 7 is out of range: there are 3 classes"):
        pf.nn.functional.cross_entropy(pf.tensor(SCORES), pf.tensor([0, 7]))
    with pytest.raises(IndexError, match=r"embedding: input is 5 at \[1\].*from 0 to 2"):
        pf.nn.Embedding(3, 2)(pf.tensor([0, 5]))
    with pytest.raises(ValueError, match=r"bernoulli: a probability must be from 0 to 1, got 1.5"):
        pf.bernoulli(pf.tensor([1.5]))


@pytest.mark.parametrize("wrong", [3, -1])
def test_replays_look_again(wrong):
    scores, table = pf.tensor(SCORES), pf.tensor(SCORES).T

    @pf.compile
    def loss(target):
        return pf.nn.functional.cross_entropy(scores, target) + pf.nn.functional.embedding(target, table).sum()

    for _ in range(3):
        assert np.isfinite(loss(pf.tensor([0, 1])).item())
    with pytest.raises(RuntimeError, match="out of range"):
        loss(pf.tensor([0, wrong])).item()
    assert np.isfinite(loss(pf.tensor([0, 1])).item())


def test_classes_to_ignore_are_no_classes():
    for target in ([0, -100], [-100, 2]):
        ours = pf.nn.functional.cross_entropy(pf.tensor(SCORES), pf.tensor(target)).item()
        theirs = torch.nn.functional.cross_entropy(torch.tensor(SCORES), torch.tensor(target)).item()
        assert ours == pytest.approx(theirs, rel=1e-6)


def test_probabilities_that_are_computed_flow_on():
    x = pf.tensor([0.0, 2.0], requires_grad=True)
    pf.nn.functional.binary_cross_entropy(pf.sigmoid(x), pf.tensor([1.0, 0.0])).backward()
    y = torch.tensor([0.0, 2.0], requires_grad=True)
    torch.nn.functional.binary_cross_entropy(torch.sigmoid(y), torch.tensor([1.0, 0.0])).backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-5)
