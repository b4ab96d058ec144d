"""Tables of vectors against torch's: rows that are shortened, gradients by frequency, what is refused."""

import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
ROWS = np.array([[1, 3, 1], [0, 3, 3]])


def tables(**settings):
    torch.manual_seed(0)
    theirs = torch.nn.Embedding(5, 4, **settings).double()
    ours = pf.nn.Embedding(5, 4, **settings, dtype=pf.float64)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("norm_type", [1.0, 2.0, np.inf])
def test_named_rows_are_shortened_in_the_table(norm_type):
    ours, theirs = tables(max_norm=0.7, norm_type=norm_type)
    before = ours.weight
    got, want = ours(pf.tensor(ROWS)), theirs(torch.from_numpy(ROWS))
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-12)
    assert ours.weight is before
    got.sum().backward()
    want.sum().backward()
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-12)


def test_a_compiled_step_shortens_too():
    ours, theirs = tables(max_norm=0.7)
    step = pf.compile(lambda rows: ours(rows).sum())
    for rows in (ROWS, ROWS + 1, ROWS):
        assert step(pf.tensor(rows)).item() == pytest.approx(theirs(torch.from_numpy(rows)).sum().item(), rel=1e-12)
    np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-12)


def test_gradients_by_frequency():
    ours, theirs = tables(scale_grad_by_freq=True, padding_idx=0)
    (ours(pf.tensor(ROWS)) * 2).sum().backward()
    (theirs(torch.from_numpy(ROWS)) * 2).sum().backward()
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-12)


def test_a_given_table_keeps_its_settings():
    made = pf.nn.Embedding.from_pretrained(pf.ones([2, 9]), max_norm=1.0)
    assert made(pf.tensor([0], dtype=pf.int64)).numpy() == pytest.approx(1 / 3, rel=1e-6)
    assert "max_norm=1.0" in repr(made)


def test_sparse_gradients_are_refused():
    with pytest.raises(NotImplementedError, match="sparse"):
        pf.nn.Embedding(5, 4, sparse=True)
    with pytest.raises(NotImplementedError, match="sparse"):
        pf.nn.functional.embedding(pf.tensor([0], dtype=pf.int64), pf.ones([2, 2]), sparse=True)
