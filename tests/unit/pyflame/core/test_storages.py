"""Views share a storage: what is written through one is seen by all, gradients included."""

import numpy as np
import pytest

import pyflame as pf


def grid():
    return pf.tensor(np.arange(6.0).reshape(2, 3))


WRITES = {
    "row": (lambda x: x[0].zero_(), [[0, 0, 0], [3, 4, 5]]),
    "element of a view": (lambda x: x.view(-1).__setitem__(0, 5.0), [[5, 1, 2], [3, 4, 5]]),
    "transpose": (lambda x: x.T.add_(1), [[1, 2, 3], [4, 5, 6]]),
    "chunk": (lambda x: x.chunk(2, 0)[1].mul_(0), [[0, 1, 2], [0, 0, 0]]),
    "iteration": (lambda x: [row.neg_() for row in x], [[0, -1, -2], [-3, -4, -5]]),
    "diagonal": (lambda x: x.diagonal().fill_(9), [[9, 1, 2], [3, 9, 5]]),
    "data": (lambda x: x.data[0, 1:].fill_(7), [[0, 7, 7], [3, 4, 5]]),
    "detached": (lambda x: x.detach().add_(1), [[1, 2, 3], [4, 5, 6]]),
    "every other": (lambda x: x[:, ::2].zero_(), [[0, 1, 0], [0, 4, 0]]),
    "slice of a slice": (lambda x: x[:, 1:].T[0].fill_(8), [[0, 8, 2], [3, 8, 5]]),
    "expanded": (lambda x: x.expand(4, 2, 3)[2].fill_(1), [[1, 1, 1], [1, 1, 1]]),
    "narrow": (lambda x: x.narrow(1, 1, 2).sub_(1), [[0, 0, 1], [3, 3, 4]]),
    "operand that is written": (lambda x: x[:, 1:].add_(x[:, :2]), [[0, 1, 3], [3, 7, 9]]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views(name):
    change, expected = WRITES[name]
    x = grid()
    held, before = x.reshape(3, 2), x * 1
    change(x)
    assert x.tolist() == expected
    assert held.tolist() == np.array(expected).reshape(3, 2).tolist()
    assert before.tolist() == grid().tolist()


@pytest.mark.parametrize("name", WRITES)
def test_compiled_functions_write_through_views(name):
    change, expected = WRITES[name]
    x = grid()
    held = x.reshape(3, 2)

    @pf.compile
    def step():
        change(x)
        return x * 2

    got = step()
    assert x.tolist() == expected
    assert got.tolist() == (np.array(expected) * 2).tolist()
    assert held.tolist() == np.array(expected).reshape(3, 2).tolist()
    other = grid()
    change(other)
    change(other)
    step()
    assert x.tolist() == other.tolist()


def test_augmented_assignment_changes_the_tensor():
    x = pf.ones(3)
    same = x
    x += 1
    x *= 3
    x -= 2
    x /= 2
    assert same is x
    assert same.tolist() == [2, 2, 2]
    number = pf.ones(2, dtype=pf.int64)
    with pytest.raises(TypeError, match="float"):
        number += 0.5


def test_parameters_under_no_grad_and_state_dicts():
    layer = pf.nn.Linear(2, 2)
    with pf.no_grad():
        layer.weight[0] -= layer.weight[0]
        layer.bias += 3 - layer.bias
    assert layer.weight.tolist()[0] == [0, 0]
    assert layer.bias.tolist() == [3, 3]
    layer.state_dict()["bias"].zero_()
    assert layer.bias.tolist() == [0, 0]
    assert layer.bias.requires_grad


def test_gradients_through_views():
    w = pf.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = pf.zeros(2, 3)
    x[0].add_(w)
    x[1:].copy_(w * 2)
    assert x.requires_grad
    (x * x).sum().backward()
    assert w.grad.tolist() == [10, 20, 30]


REFUSED = {
    "leaf": lambda w: w.add_(1),
    "view of a leaf": lambda w: w[0].add_(1),
    "saved": lambda w: _saved(w),
    "expanded": lambda w: pf.ones(3).expand(2, 3).add_(1),
    "one of several": lambda w: (w * 2).unbind(0)[0].add_(1),
}


def _saved(w):
    y = w.exp()
    y.add_(1)
    y.sum().backward()


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name):
    with pytest.raises(RuntimeError):
        REFUSED[name](pf.ones(3, requires_grad=True))


def test_strides_tell_where_a_view_is():
    x = pf.zeros(4, 6)
    view = x[1:, ::2].T
    assert view.stride() == (2, 6)
    assert view.storage_offset() == 6
    assert not view.is_contiguous()
    assert view.contiguous().stride() == (3, 1)
    assert view.data_ptr() == x.data_ptr() + 6 * 4
    assert view._base.shape == (4, 6)
    with pytest.raises(RuntimeError, match="reshape"):
        view.view(-1)
    copy = view.reshape(-1)
    copy.fill_(1)
    assert x.sum().item() == 0


def test_views_that_died_leave_nothing_behind():
    x = pf.ones(3)
    for _ in range(200):
        x.view(3, 1)
    assert len(x._alias.family.storage._fresh) < 20


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(2, 3), lambda x: x.reshape(2, 3), lambda x: x[:], lambda x: x[...], lambda x: x.expand(2, 3),
        lambda x: x.transpose(0, 0), lambda x: x.squeeze(), lambda x: x.view_as(x),
    ],
    ids=["view", "reshape", "slice", "ellipsis", "expand", "transpose", "squeeze", "view_as"],
)  # fmt: skip
def test_a_view_of_the_same_shape_is_another_tensor(view):
    x = pf.zeros([2, 3])
    other = view(x)
    assert other is not x
    other.add_(1)
    assert x.tolist() == [[1.0] * 3] * 2
    leaf = pf.zeros([2, 3], requires_grad=True)
    seen = []
    view(leaf).register_hook(seen.append)
    leaf.sum().backward()
    assert not seen


@pytest.mark.parametrize("name", ["uniform_", "normal_", "exponential_", "bernoulli_", "random_"])
def test_random_numbers_of_an_expanded_tensor_are_refused(name):
    with pytest.raises(RuntimeError, match="one in memory"):
        getattr(pf.zeros([1, 3]).expand(2, 3), name)()


def test_one_element_in_two_shapes_is_no_overlap():
    x = pf.tensor([[1.5, 2.0]])
    row = x[0, :1]
    x[:, :1].mul_(row.unsqueeze(0))
    assert x.tolist() == [[2.25, 2.0]]


def test_a_view_that_was_viewed_after_its_base_required_gradients_is_written():
    a = pf.ones([2, 3], requires_grad=True)
    base = pf.ones([2, 3])
    view = base.unsqueeze(0)
    base.mul_(a)
    again = view.transpose(0, 1)
    view.mul_(3.0)
    again.sum().backward()
    assert a.grad.tolist() == [[3.0] * 3] * 2
