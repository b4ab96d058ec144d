"""Objects that compiled functions make and return: each call's own, or the function runs as it is."""

import functools
from collections import defaultdict, deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

import pyflame as pf
from pyflame import distributions as d


class Pair:
    def __init__(self, x, tag="a"):
        self.x, self.tag = x, tag
        self.more = {"list": [x + 1, (x * 2,)]}

    def total(self):
        return self.x + self.more["list"][0] + self.more["list"][1][0]


class Nested:
    def __init__(self, x):
        self.pair, self.count = Pair(x), 3

    def total(self):
        return self.pair.total() * self.count


class Lazy:
    """An attribute whose name a property of the class has, too."""

    def __init__(self, x):
        self.__dict__["x"] = x

    @property
    def x(self):
        return self.__dict__["x"] * 2

    def total(self):
        return self.x


@dataclass
class Record:
    x: object

    def __post_init__(self):
        self.doubled = self.x * 2  # no field

    def total(self):
        return self.x + self.doubled


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def total(self):
        return self.x


class Model(pf.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.register_buffer("x", x)

    def total(self):
        return self.x


class Listed(list):
    def total(self):
        return self[0]


def captured(x):
    return lambda: x * 2


def given(lib=d):
    """What is made of a tensor, and what to read of it."""
    return {
        "an object": (Pair, Pair.total),
        "an object in an object": (Nested, Nested.total),
        "a property over an attribute": (Lazy, Lazy.total),
        "a dataclass with more": (Record, Record.total),
        "in a tuple": (lambda x: (Pair(x), x), lambda r: r[0].total()),
        "a normal": (lambda x: lib.Normal(x, 1.0), lambda r: r.mean),
        "independent ones": (lambda x: lib.Independent(lib.Normal(x, 1.0), 1), lambda r: r.log_prob(pf.ones(2))),
        "classes": (lambda x: lib.Categorical(logits=x), lambda r: r.probs),
        "normal vectors": (lambda x: lib.MultivariateNormal(x, pf.eye(2)), lambda r: r.log_prob(pf.ones(2))),
        "a transformed one": (
            lambda x: lib.TransformedDistribution(lib.Normal(x, 1.0), [lib.AffineTransform(x, 2.0)]),
            lambda r: r.log_prob(pf.ones(2)),
        ),
    }


REFUSED = {
    "slots": (Slotted, Slotted.total),
    "a namespace": (lambda x: SimpleNamespace(x=x), lambda r: r.x),
    "a module": (Model, Model.total),
    "a kind of list": (lambda x: Listed([x]), Listed.total),
    "a deque": (lambda x: deque([x]), lambda r: r[0]),
    "a defaultdict": (lambda x: defaultdict(list, a=x), lambda r: r["a"]),
    "a set": (lambda x: {x}, lambda r: next(iter(r))),
    "a closure": (captured, lambda r: r()),
    "a default": (lambda x: lambda y=x: y, lambda r: r()),
    "a partial": (lambda x: functools.partial(pf.add, x, 1), lambda r: r()),
    "a method": (lambda x: Pair(x).total, lambda r: r()),
    "a generator": (lambda x: (part for part in (x, x + 1)), next),
    "a map": (lambda x: map(pf.relu, (x, x + 1)), next),
}


def argument(i):
    return pf.tensor([float(i), i - 3.0])


@pytest.mark.parametrize("name", given())
def test_each_call_gives_its_own(name):
    make, read = given()[name]
    compiled = pf.compile(lambda x: make(x * 2), fullgraph=True)
    held = [compiled(argument(i)) for i in range(4)]
    for i, result in enumerate(held):
        wanted = make(argument(i) * 2)
        assert type(result) is type(wanted)
        np.testing.assert_allclose(read(result).numpy(), read(wanted).numpy(), rtol=1e-6)
    assert compiled.trace_count == 1
    assert len({id(result) for result in held}) == 4


@pytest.mark.filterwarnings("ignore:compiled .* runs as it is:RuntimeWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_others_run_as_they_are(name):
    make, read = REFUSED[name]
    with pytest.raises(pf.TraceError, match="that it makes of tensors"):
        pf.compile(lambda x: make(x * 2), fullgraph=True)(argument(1))
    compiled = pf.compile(lambda x: make(x * 2))
    for i in range(3):
        np.testing.assert_array_equal(read(compiled(argument(i))).numpy(), read(make(argument(i) * 2)).numpy())


def test_gradients_go_through_objects():
    linear = pf.nn.Linear(2, 2)
    compiled = pf.compile(lambda x: d.Independent(d.Normal(linear(x), 1.0), 1))
    for i in range(3):
        slopes = []
        for make in (compiled, compiled.function):
            linear.zero_grad()
            make(argument(i)).log_prob(pf.ones(2)).backward()
            slopes.append(linear.weight.grad.numpy().copy())
        np.testing.assert_allclose(*slopes, rtol=1e-6)


def test_one_object_at_two_places_is_refused():
    def twice(x):
        pair = Pair(x)
        return pair, [pair]

    with pytest.raises(pf.TraceError, match="one Pair at two places"):
        pf.compile(twice, fullgraph=True)(argument(1))


def test_an_object_of_itself_is_refused():
    def ring(x):
        pair = Pair(x)
        pair.me = pair
        return pair

    with pytest.raises(pf.TraceError, match="one Pair at two places"):
        pf.compile(ring, fullgraph=True)(argument(1))


KEPT = Pair(pf.ones(2))


def test_what_was_there_stays_what_it_is():
    def keep(x, pair):
        return KEPT, pair, x + KEPT.x, pf.relu, KEPT.total

    compiled = pf.compile(keep, fullgraph=True)
    mine = Pair(pf.zeros(2))
    for i in range(3):
        first, second, total, function, method = compiled(argument(i), mine)
        assert first is KEPT
        assert second is mine
        assert function is pf.relu
        assert method() is not None
        assert total.tolist() == (argument(i) + 1).tolist()
