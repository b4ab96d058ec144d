import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyflame_rt.graph import Dim, Shape, symbol
from pyflame_rt.graph.dim import dim_from_text
from pyflame_rt.graph.errors import ShapeMismatchError, UndeterminedError

SIZES = {"N": 7, "M": 3}
dims = st.recursive(
    st.one_of(st.integers(0, 9), st.sampled_from([symbol("N"), symbol("M")])),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: apply(*t)),
    max_leaves=6,
)


def apply(a, sign, b):
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[sign]()


def value(dim):
    return dim.evaluate(SIZES) if isinstance(dim, Dim) else dim


@given(dims, dims)
def test_arithmetic_means_what_it_says(a, b):
    assert value(a + b) == value(a) + value(b)
    assert value(a - b) == value(a) - value(b)
    assert value(a * b) == value(a) * value(b)


@given(dims)
def test_text_comes_back(dim):
    assert dim_from_text(str(dim)) == dim


def test_exact_division():
    n, m = symbol("N"), symbol("M")
    assert (12 * n * m) // (4 * n) == 3 * m
    assert (n * 64) // 64 == n
    assert str((n + 1) // 2) == "floor((N + 1)/2)"


@pytest.mark.parametrize("name", ["batch size", 'say "hi"', "naïve", "2x"])
def test_odd_names_come_back(name):
    assert dim_from_text(str(symbol(name))) == symbol(name)


def test_sizes_that_are_not_known_do_not_pretend():
    with pytest.raises(UndeterminedError, match="N"):
        int(symbol("N"))
    with pytest.raises(UndeterminedError):
        _ = symbol("N") < 3


def test_shapes():
    shape = Shape([2, "N", None, -1])
    assert shape == [2, symbol("N"), None, None]
    assert not shape.is_static
    assert Shape([2, 3]).num_elements == 6
    assert {Shape([1]): 1}[Shape((1,))] == 1
    with pytest.raises(ShapeMismatchError):
        Shape([-2])
    with pytest.raises(ShapeMismatchError):
        Shape([1.5])
