"""`out=`: functions write their results into tensors that are there, as torch's do."""

import pickle
from itertools import islice

import numpy as np
import pytest

import pyflame as pf
from pyflame.outs import WITH_OUT
from pyflame_rt.graph.errors import ShapeMismatchError
from tests.unit.pyflame.core import test_opinfo as database

torch = pytest.importorskip("torch")
RANDOM = {"bernoulli", "multinomial", "normal", "rand", "randint", "randn", "randperm"}
# Two kinds of calls under one name, of which torch's database tells the other one.
TAKEN = sorted(name for name in WITH_OUT - RANDOM - {"empty"} if name in database.OPS and name in database.NAMES)


def plain(result):
    return [result] if isinstance(result, pf.Tensor) else list(result)


@pytest.mark.filterwarnings("ignore::pyflame.LazyEvaluationWarning")
@pytest.mark.parametrize("name", TAKEN)
def test_results_are_written(name):
    tried = 0
    op = database.OPS[name]
    kind = next(k for k in (torch.float32, torch.int64, torch.bool) if op.supports_dtype(k, "cpu"))
    for sample in islice(op.sample_inputs("cpu", kind, requires_grad=False), 6):
        args, kwargs = database.convert(list(sample.args)), database.convert(sample.kwargs)
        first = database.convert(sample.input)
        try:
            wanted = plain(getattr(pf, name)(first, *args, **kwargs))
        except (TypeError, ValueError, RuntimeError, NotImplementedError):
            continue  # torch's arguments in another order: the sweep of test_opinfo has these
        kept = [pf.full(w.shape, 1, dtype=w.dtype) for w in wanted]
        got = getattr(pf, name)(first, *args, **kwargs, out=kept[0] if len(kept) == 1 else tuple(kept))
        for a, b, w in zip(plain(got), kept, wanted, strict=True):
            assert a is b
            np.testing.assert_array_equal(b.numpy(), w.numpy())
        tried += 1
    assert tried


def test_these_take_it_in_torch():
    # The database asks one form of each: torch.sum(x) does not take it, torch.sum(x, dim) does.
    known = {name: database.OPS[name].supports_out for name in WITH_OUT & set(database.OPS)}
    assert {name for name, takes in known.items() if not takes} <= {
        "median",
        "nanmedian",
        "normal",
        "prod",
        "randint",
        "sum",
    }
    assert len(known) > 150


REFUSED = {
    "a gradient": lambda m: m.add(m.ones(2, requires_grad=True), 1, out=m.zeros(2)),
    "a target with gradients": lambda m: m.add(m.ones(2), 1, out=m.zeros(2, requires_grad=True)),
    "floats in integers": lambda m: m.add(m.ones(2), 1, out=m.zeros(2, dtype=m.int64)),
    "one of two": lambda m: m.sort(m.ones(2), out=m.zeros(2)),
    "no tensor": lambda m: m.add(m.ones(2), 1, out=[0, 0]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_both(case):
    for module in (torch, pf):
        with pytest.raises((TypeError, RuntimeError)):
            REFUSED[case](module)


def test_another_shape_is_refused():
    with pytest.raises(ShapeMismatchError, match=r"out= has the shape \[3\], the result \[2\]"):
        pf.add(pf.ones(2), 1, out=pf.zeros(3))


def test_views_types_and_the_input_itself():
    def run(m):
        base, x = m.zeros(2, 3), m.tensor([1.0, 2.0, float("nan")])
        m.add(x[:1], m.ones(3), out=base[1])
        m.mul(m.tensor([1, 2, 3]), 2, out=base[0])
        m.nan_to_num(x, nan=7.0, out=x)
        m.matmul(m.ones(2, 2), base.clone(), out=base)
        values, places = m.zeros(2), m.zeros(2, dtype=m.int64)
        m.max(base, dim=1, out=(values, places))
        return [t.tolist() for t in (base[:, :2], x, values[:1], m.eye(2, out=m.ones(2, 2)))]

    assert run(pf) == run(torch)


def test_in_compiled_functions():
    state = pf.zeros(3)

    @pf.compile
    def step(x):
        pf.add(state, x, out=state)
        return state * 2

    for i in range(4):
        assert step(pf.full((3,), float(i))).tolist() == [float(i * (i + 1))] * 3
    assert state.tolist() == [6.0] * 3


@pytest.mark.parametrize("name", ["add", "relu", "max", "softmax"])
def test_functions_pickle(name):
    function = getattr(pf, name)
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301 -- its own
