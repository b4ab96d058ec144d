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


BAGS = np.array([1, 3, 1, 0, 3, 3, 4, 2])
OFFSETS = np.array([0, 3, 3, 7])  # the second bag is empty
SHARES = np.linspace(-1, 2, 8)


def bags(mode, **settings):
    torch.manual_seed(0)
    theirs = torch.nn.EmbeddingBag(5, 4, mode=mode, **settings).double()
    ours = pf.nn.EmbeddingBag(5, 4, mode=mode, **settings, dtype=pf.float64)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def bags_agree(ours, theirs, *arrays):
    seed = np.linspace(-1, 1.5, 4)
    got = ours(*[None if a is None else pf.tensor(a) for a in arrays])
    want = theirs(*[None if a is None else torch.from_numpy(a) for a in arrays])
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=1e-12)
    (got * pf.tensor(seed)).sum().backward()
    (want * torch.from_numpy(seed)).sum().backward()
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ours.weight.numpy(), theirs.weight.detach().numpy(), rtol=1e-12)


BAG_SETTINGS = [{}, {"padding_idx": 3}, {"padding_idx": -4}, {"max_norm": 0.7}]


@pytest.mark.parametrize("settings", BAG_SETTINGS, ids=[str(s) for s in BAG_SETTINGS])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_equal_torch(mode, settings):
    bags_agree(*bags(mode, **settings), BAGS, OFFSETS)
    bags_agree(*bags(mode, **settings), BAGS.reshape(2, 4))
    bags_agree(*bags(mode, include_last_offset=True, **settings), BAGS, np.array([0, 3, 3, 8]))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_of_bags_by_frequency(mode):
    ours, theirs = bags(mode)
    ours.scale_grad_by_freq = True  # of torch's only the plain gradient: on the CPU it divides by other rows' counts
    (ours(pf.tensor(BAGS), pf.tensor(OFFSETS)) ** 2).sum().backward()
    (theirs(torch.from_numpy(BAGS), torch.from_numpy(OFFSETS)) ** 2).sum().backward()
    counts = np.bincount(BAGS, minlength=5)[:, None]
    np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy() / counts, rtol=1e-12)


def test_rows_of_bags_with_weights():
    ours, theirs = bags("sum")
    bags_agree(ours, theirs, BAGS, OFFSETS, SHARES)
    shares = pf.tensor(SHARES).requires_grad_()
    other = torch.from_numpy(SHARES).requires_grad_()
    (ours(pf.tensor(BAGS), pf.tensor(OFFSETS), shares) ** 2).sum().backward()
    (theirs(torch.from_numpy(BAGS), torch.from_numpy(OFFSETS), other) ** 2).sum().backward()
    np.testing.assert_allclose(shares.grad.numpy(), other.grad.numpy(), rtol=1e-12)


def test_of_equal_rows_the_first_gets_the_gradient():
    table, theirs = pf.ones([3, 2]).requires_grad_(), torch.ones(3, 2, requires_grad=True)
    rows, offsets = np.array([2, 0, 1, 0]), np.array([0, 2])
    settings = {"mode": "max"}
    pf.nn.functional.embedding_bag(pf.tensor(rows), table, pf.tensor(offsets), **settings).sum().backward()
    given = torch.from_numpy(rows), theirs, torch.from_numpy(offsets)
    torch.nn.functional.embedding_bag(*given, **settings).sum().backward()
    np.testing.assert_array_equal(table.grad.numpy(), theirs.grad.numpy())


def test_bags_of_nothing_and_of_padding_are_zero():
    ours, theirs = bags("max", padding_idx=0)
    nothing = np.zeros((2, 0), np.int64)
    np.testing.assert_array_equal(ours(pf.tensor(nothing)).numpy(), np.zeros((2, 4)))
    padded = np.array([[0, 0], [0, 1]])
    np.testing.assert_array_equal(ours(pf.tensor(padded)).numpy(), theirs(torch.from_numpy(padded)).detach().numpy())


def test_a_given_table_of_bags():
    made = pf.nn.EmbeddingBag.from_pretrained(pf.tensor([[1.0], [2.0]]), mode="sum", include_last_offset=True)
    rows, offsets = pf.tensor([0, 1, 1], dtype=pf.int64), pf.tensor([0, 2, 3], dtype=pf.int64)
    assert made(rows, offsets).numpy().tolist() == [[3.0], [2.0]]
    assert not made.weight.requires_grad
    assert repr(pf.nn.EmbeddingBag(2, 3, mode="max", padding_idx=-1)) == "EmbeddingBag(2, 3, mode='max', padding_idx=1)"


def test_bad_bags_are_refused():
    bag, table = pf.nn.functional.embedding_bag, pf.ones([3, 2])
    rows, offsets = pf.tensor([0, 1], dtype=pf.int64), pf.tensor([0], dtype=pf.int64)
    with pytest.raises(ValueError, match="offsets has to be a 1D"):
        bag(rows, table)
    with pytest.raises(ValueError, match="offsets has to be None"):
        bag(rows.reshape([1, 2]), table, offsets)
    with pytest.raises(ValueError, match="sum, mean or max"):
        bag(rows, table, offsets, mode="median")
    with pytest.raises(NotImplementedError, match="per_sample_weights"):
        bag(rows, table, offsets, per_sample_weights=pf.ones([2]))
    with pytest.raises(NotImplementedError, match="max mode"):
        bag(rows, table, offsets, mode="max", scale_grad_by_freq=True)
    with pytest.raises(NotImplementedError, match="sparse"):
        bag(rows, table, offsets, sparse=True)
    with pytest.raises(TypeError, match="whole numbers"):
        bag(pf.ones([2, 2]), table)
    with pytest.raises(ValueError, match="padding_idx"):
        bag(rows, table, offsets, padding_idx=3)
