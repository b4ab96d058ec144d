"""Collectives of one process: torch's, of a world of one, are the oracle."""

import pytest

import pyflame as pf
from pyflame import distributed as dist

torch = pytest.importorskip("torch")


@pytest.fixture
def world(tmp_path):
    """torch's group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed
    torch.distributed.destroy_process_group()


def test_the_defaults():
    assert (dist.is_available(), dist.is_initialized(), dist.get_rank(), dist.get_world_size()) == (True, False, 0, 1)


def test_a_group_of_one():
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        assert dist.is_initialized()
        with pytest.raises(ValueError, match="already"):
            dist.init_process_group()
    finally:
        dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="2 processes"):
        dist.init_process_group(world_size=2)


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_reductions(name, world):
    ours, theirs = pf.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, -2.0, 3.0])
    dist.all_reduce(ours, op=getattr(dist.ReduceOp, name))
    world.all_reduce(theirs, op=getattr(world.ReduceOp, name))
    assert ours.tolist() == theirs.tolist()


def test_gathering(world):
    ours, theirs = [pf.zeros(2, 3)], [torch.zeros(2, 3)]
    dist.all_gather(ours, pf.ones(2, 3) * 4)
    world.all_gather(theirs, torch.ones(2, 3) * 4)
    assert ours[0].tolist() == theirs[0].tolist()
    one = pf.zeros(2)
    dist.scatter(one, [pf.tensor([5.0, 6.0])])
    assert one.tolist() == [5.0, 6.0]


def test_a_loss_over_all_processes():
    """The pattern of a training step that is written for many processes."""
    weight = pf.nn.Parameter(pf.tensor([[2.0, 1.0]]))
    loss = (pf.ones(3, 2) @ weight.t()).mean()
    loss.backward()
    if dist.get_world_size() > 1:
        raise AssertionError("there is one process")
    dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
    assert (weight.grad / dist.get_world_size()).tolist() == [[1.0, 1.0]]
    total = loss.detach().clone()
    assert dist.all_reduce(total, async_op=True).wait()
    assert float(total) == 3.0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dist.all_reduce(3.0), TypeError),
        (lambda: dist.all_reduce(pf.ones(1), op="sum"), TypeError),
        (lambda: dist.all_gather([pf.ones(1), pf.ones(1)], pf.ones(1)), ValueError),
        (lambda: dist.all_gather([pf.ones(2)], pf.ones(1)), ValueError),
        (lambda: dist.broadcast(pf.ones(1), src=1), ValueError),
        (lambda: dist.gather(pf.ones(1)), ValueError),
    ],
    ids=["number", "text", "two places", "shape", "rank", "no list"],
)
def test_wrong_uses(call, error):
    with pytest.raises(error):
        call()
