"""Indexing and assignment as NumPy has them."""

import warnings

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import pyflame as pf


def part(size):
    """One entry of an index for an axis."""
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    options = [st.slices(max(size, 1)), st.builds(slice, bound, bound, step)]
    if size:
        ints = st.integers(-size, size - 1)
        options += [ints, st.lists(ints, min_size=1, max_size=3).map(np.array)]
    return st.one_of(options)


@st.composite
def indexed(draw):
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if draw(st.integers(0, 5)) == 0:
        mask = draw(hnp.arrays(bool, shape[: draw(st.integers(1, len(shape)))]))
        return array, mask
    used = draw(st.integers(0, len(shape)))
    key = [draw(part(size)) for size in shape[:used]]
    lists = [i for i, k in enumerate(key) if isinstance(k, np.ndarray)]
    for i in lists:  # arrays of an index have one length
        key[i] = np.resize(key[i], len(key[lists[0]]))
        if draw(st.booleans()):
            key[i] = key[i].tolist()
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    if used < len(shape) and draw(st.booleans()):
        key.append(Ellipsis)
    return array, tuple(key)


@settings(max_examples=150, deadline=None)
@given(indexed())
def test_reading(case):
    array, key = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pf.LazyEvaluationWarning)
        np.testing.assert_array_equal(pf.tensor(array)[key].numpy(), array[key])


@settings(max_examples=150, deadline=None)
@given(indexed(), st.sampled_from(["number", "array", "row"]))
def test_writing(case, kind):
    array, key = case
    place = array[key]
    value = -1.0 if kind == "number" else np.full(place.shape if kind == "array" else place.shape[-1:], -2, np.float32)
    expected = array.copy()
    expected[key] = value
    t = pf.tensor(array)
    other = t.detach()
    t[key] = value if kind == "number" else pf.tensor(value)
    np.testing.assert_array_equal(t.numpy(), expected)
    np.testing.assert_array_equal(other.numpy(), expected)


def test_writing_rebinds_the_handle_only():
    x = pf.zeros([3])
    y = x + 1
    x[1] = 5
    assert x.tolist() == [0, 5, 0]
    assert y.tolist() == [1, 1, 1]


def test_gradients_flow_through_reading_and_writing():
    x = pf.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    y = x * 1
    y[:, 1] = x[:, 0] * 3
    (y[1, [0, 2, 2]].sum() + y[0, 1]).backward()
    assert x.grad.tolist() == [[3, 0, 0], [1, 0, 2]]


def test_a_lazy_mask_is_evaluated_with_a_warning():
    x = pf.tensor([1.0, -1.0, 2.0])
    with pytest.warns(pf.LazyEvaluationWarning, match="where"):
        assert x[x > 0].tolist() == [1, 2]
    x[x < 0] = 0.0
    assert x.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("key", "error", "says"),
    [
        (5, IndexError, "index 5.*dimension 0 of size 2"),
        ((0, [7]), IndexError, "index 7.*dimension 1 of size 3"),
        ((0, 0, 0), IndexError, "3 indices"),
        ((..., ...), IndexError, "ellipsis"),
        (1.5, IndexError, "1.5"),
        (np.array([True]), IndexError, "mask"),
    ],
    ids=repr,
)
def test_wrong_indices(key, error, says):
    with pytest.raises(error, match=says):
        pf.zeros([2, 3])[key]


def test_a_value_that_does_not_fit():
    x = pf.zeros([2, 3])
    with pytest.raises(RuntimeError, match=r"\[2\].*\[3\]"):
        x[0] = pf.ones([2])


@pytest.mark.parametrize(
    "key",
    [
        [0, -1],
        [[0, 1], [2, -3]],
        [2],
        (slice(None), [1, 0]),
        (slice(None), slice(None), np.array([[1, 0]])),
        ([0, 1], [1, -1]),
        ([[0], [1]], [[1], [2]], [[0], [1]]),
        (np.array([0, 1]), [2, 0]),
        ([0, 1], [2]),
        ([0, 1], 2),
        ([0, 1], slice(1, 3)),
        ([True, False, True],),
        (slice(None), [True, False, True, True]),
        np.array([0, 2], np.int8),
        np.array([0, 2], np.uint16),
        np.array(1),
        (np.array(1), np.array(2)),
    ],
    ids=repr,
)
def test_lists_and_arrays_as_in_numpy(key):
    array = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    np.testing.assert_array_equal(pf.tensor(array)[key].numpy(), array[key])
    compiled = pf.compile(lambda x: x[key])
    for _ in range(2):
        np.testing.assert_array_equal(compiled(pf.from_numpy(array)).numpy(), array[key])
    x = pf.tensor(array, requires_grad=True)
    x[key].sum().backward()
    wanted = np.zeros_like(array)
    np.add.at(wanted, key, 1)
    np.testing.assert_array_equal(x.grad.numpy(), wanted)


@pytest.mark.parametrize("key", [[0, 3], [-4], ([0, 0], [0, 4]), (slice(None), [4]), np.array([3])], ids=repr)
def test_lists_and_arrays_out_of_range(key):
    with pytest.raises(IndexError):
        pf.ones(3, 4)[key]


@pytest.mark.parametrize(
    "key", [([0], [0], [0]), (slice(None), slice(None), [0]), [0.5], [[0], [1, 2]], ["a"]], ids=str
)
def test_what_is_no_index(key):
    with pytest.raises((IndexError, ValueError, TypeError)):
        pf.ones(3, 4)[key]


def test_an_index_does_not_follow_its_list():
    rows, places = [0, 1], np.array([0, 1])
    x = pf.tensor(np.arange(3, dtype=np.float32))
    one, two = x[rows], x[places]
    rows[0], places[0] = 2, 2
    assert one.tolist() == two.tolist() == [0.0, 1.0]
