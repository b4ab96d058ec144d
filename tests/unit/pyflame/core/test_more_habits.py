"""Names, settings and keywords that programs written for torch use, and that once were missing."""

import numpy as np
import pytest

import pyflame as pf
from tests.programs.same import classes, numbers


def in_both(run):
    """What a function gives in torch and here, as arrays."""
    torch = pytest.importorskip("torch")
    each = [run(torch), run(pf)]
    return [[np.asarray(t.detach()) for t in found] for found in each]


@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 10.0])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_matrix_exp(scale, kind):
    a, w = (numbers(3, 4, 4, seed=i).astype(kind) for i in (0, 1))

    def run(torch):
        x = torch.tensor((a - a.transpose(0, 2, 1)) * scale, requires_grad=True)
        y = torch.linalg.matrix_exp(x)
        (y * torch.tensor(w)).sum().backward()
        return y, x.grad

    tolerance = {"float32": 1e-4, "float64": 1e-10}[kind]
    for wanted, found in zip(*in_both(run), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_a_matrix_too_large_for_matrix_exp_gives_nan():
    assert np.isnan(pf.matrix_exp(pf.tensor([[-1e30]])).numpy()).all()


@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((4, 9), 1), ((4, 9), 0), ((3, 4, 5), -1), ((1,), 0), ((), 0)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_mode(shape, dim, keepdim):
    for wanted, found in zip(
        *in_both(lambda torch: torch.mode(torch.tensor(classes(4, *shape)), dim, keepdim)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_scattered_extremes_are_shared_by_ties(reduce, axis):
    size = [(5, 3), (4, 5)][axis]
    data, source, weight = classes(4, 4, 3), classes(4, *size, seed=1), numbers(4, 3)

    def run(torch):
        d, s = (torch.tensor(x.astype(np.float32), requires_grad=True) for x in (data, source))
        y = d.scatter_reduce(axis, torch.tensor(classes((4, 3)[axis], *size)), s, reduce=reduce)
        (y * torch.tensor(weight)).sum().backward()
        return y, d.grad, s.grad

    for wanted, found in zip(*in_both(run), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_memory_formats_change_no_value_and_are_told_apart():
    x = pf.tensor(numbers(2, 3, 4, 5))
    for y in (x.to(memory_format=pf.channels_last), x.contiguous(memory_format=pf.channels_last),
              x.clone(memory_format=pf.preserve_format)):  # fmt: skip
        assert pf.equal(x, y)
    assert x.is_contiguous()
    assert not x.is_contiguous(memory_format=pf.channels_last)
    assert x.permute(0, 3, 1, 2).is_contiguous(memory_format=pf.channels_last)
    assert not pf.zeros(2, 3).is_contiguous(memory_format=pf.channels_last)
    assert pf.zeros_like(x, memory_format=pf.contiguous_format).shape == (2, 3, 4, 5)
    with pytest.raises(TypeError, match="memory_format must be one of"):
        x.clone(memory_format="channels_last")


def test_to_takes_all_that_torch_does():
    x = pf.ones(2)
    assert x.to("cpu", non_blocking=True) is x
    assert x.to(pf.float64, True).dtype is pf.float64
    assert x.to("cpu", False, True) is not x
    layer = pf.nn.Linear(2, 2)
    assert layer.to("cpu", non_blocking=True, memory_format=pf.channels_last) is layer
    with pytest.raises(TypeError, match="no more"):
        x.to("cpu", True, True, True)


def test_functions_with_an_underscore_change_their_argument():
    x = pf.tensor([-1.0, 4.0])
    assert pf.relu_(x) is x
    assert pf.sqrt_(x).tolist() == [0.0, 2.0]
    assert pf.zero_(x).tolist() == [0.0, 0.0] == x.tolist()
    with pytest.raises(TypeError, match="changes a tensor"):
        pf.relu_([1.0])
    for name in pf.in_place.IN_PLACE:
        assert callable(getattr(pf.Tensor, name))


def test_settings_are_checked():
    with pytest.raises(RuntimeError, match="highest, high, medium"):
        pf.set_float32_matmul_precision("low")
    with pytest.raises(RuntimeError, match="cuda"):
        pf.set_default_device("cuda")
    pf.set_default_device("cpu")
    assert pf.get_default_device() == pf.device("cpu")
    assert not pf.is_autocast_enabled()


def test_gradients_are_clipped_in_place():
    w = pf.nn.Parameter(pf.tensor([3.0, 4.0]))
    (w * w).sum().backward()
    seen = w.grad
    pf.nn.utils.clip_grad_norm_([w], 5.0, norm_type="inf")
    np.testing.assert_allclose(seen.numpy(), [3.75, 5.0], rtol=1e-5)
    pf.nn.utils.clip_grad_value_([w], 4.0)
    np.testing.assert_allclose(seen.numpy(), [3.75, 4.0], rtol=1e-5)


def test_a_cycle_allows_one_step_after_the_last():
    def run(torch):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
        rates = []
        for _ in range(5):
            optimizer.step()
            scheduler.step()
            rates += scheduler.get_last_lr()
        with pytest.raises(ValueError, match="5"):
            scheduler.step()
        return (torch.tensor(rates),)

    wanted, found = in_both(run)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)


def test_module_states_are_stacked():
    members = [pf.nn.BatchNorm1d(2), pf.nn.BatchNorm1d(2)]
    parameters, buffers = pf.func.stack_module_state(members)
    assert parameters["weight"].shape == (2, 2)
    assert parameters["weight"].requires_grad
    assert buffers["running_mean"].shape == (2, 2)
    with pytest.raises(RuntimeError, match="one class"):
        pf.func.stack_module_state([members[0], pf.nn.Linear(1, 1)])
    with pytest.raises(RuntimeError, match="at least one"):
        pf.func.stack_module_state([])
