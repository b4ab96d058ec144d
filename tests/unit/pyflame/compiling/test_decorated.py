"""`pf.compile` takes what people decorate, and refuses by name what cannot be traced."""

import copy
import dataclasses
import functools
import pickle
import typing

import numpy as np
import pytest

import pyflame as pf

X = pf.tensor([1.0, 2.0])


class Base:
    scale = 2.0

    def __init__(self, shift):
        self.shift = shift

    @pf.compile
    def method(self, x, times=1):
        return (x * self.scale + self.shift) * times

    @pf.compile
    @staticmethod
    def under(x):
        return x * 3

    @staticmethod
    @pf.compile
    def over(x):
        return x * 4

    @pf.compile
    @classmethod
    def of_class(cls, x):
        return x * cls.scale

    @classmethod
    @pf.compile
    def over_class(cls, x):
        return x * cls.scale


class Derived(Base):
    scale = 5.0

    @pf.compile
    def method(self, x, times=1):
        return super().method(x, times) + 1


def test_methods_of_objects_and_classes():
    for kind, scale in ((Base, 2.0), (Derived, 5.0)):
        thing = kind(1.0)
        assert thing.under(X).tolist() == kind.under(X).tolist() == [3.0, 6.0]
        assert thing.over(X).tolist() == [4.0, 8.0]
        assert thing.of_class(X).tolist() == kind.of_class(X).tolist() == [scale, 2 * scale]
        assert kind.over_class(X).tolist() == [scale, 2 * scale]
    one, other, derived = Base(0.0), Base(1.0), Derived(0.0)
    for _ in range(2):
        assert one.method(X).tolist() == [2.0, 4.0]
        assert other.method(X).tolist() == [3.0, 5.0]
        assert other.method(X, times=2).tolist() == [6.0, 10.0]
        assert derived.method(X).tolist() == [6.0, 11.0]
        assert Base.method(derived, X).tolist() == [5.0, 10.0]
    one.shift = 4.0
    assert one.method(X).tolist() == [6.0, 8.0]


def test_many_objects_share_a_method():
    things = [Base(float(i)) for i in range(12)]
    for _ in range(2):
        assert [thing.method(X).tolist()[0] for thing in things] == [2.0 + i for i in range(12)]


class Net(pf.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop, self.k = pf.nn.Linear(2, 2), pf.nn.Dropout(0.5), 1.0

    def forward(self, x, *, twice=False):
        y = self.drop(self.fc(x)) * self.k
        return y * 2 if twice else y

    def describe(self):
        return f"k={self.k}"


def test_a_compiled_module_is_a_module():
    net = Net()
    compiled = pf.compile(net)
    assert isinstance(compiled, pf.nn.Module)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert [name for name, _ in compiled.named_modules()] == ["", "fc", "drop"]
    assert compiled.describe() == "k=1.0"
    assert compiled.fc is net.fc
    compiled.eval()
    assert (compiled.training, net.training, net.drop.training) == (False, False, False)
    for k in (1.0, 3.0):
        compiled.k = k
        assert net.k == k
        for twice in (False, True):
            np.testing.assert_allclose(compiled(X, twice=twice).tolist(), net(X, twice=twice).tolist(), rtol=1e-6)
    assert compiled.trace_count == 4
    seen = []
    hook = compiled.register_forward_hook(lambda module, args, out: seen.append(type(module)) or out + 1)
    np.testing.assert_allclose(compiled(X).tolist(), net(X).tolist(), rtol=1e-6)
    hook.remove()
    compiled.load_state_dict({name: tensor * 0 for name, tensor in net.state_dict().items()})
    assert compiled(X).tolist() == [0.0, 0.0]
    compiled.train()
    assert net.training
    assert compiled.requires_grad_(False) is compiled
    assert not net.fc.weight.requires_grad


def test_a_compiled_module_trains_as_it_is():
    finals = []
    for compile_it in (False, True):
        pf.manual_seed(0)
        net = pf.nn.Sequential(pf.nn.Linear(2, 4), pf.nn.Tanh(), pf.nn.Linear(4, 1))
        model = pf.compile(net) if compile_it else net
        optimizer = pf.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (model(X) ** 2).sum().backward()
            optimizer.step()
        finals.append(model(X).tolist())
    np.testing.assert_allclose(*finals, rtol=1e-5)


def test_copies_of_compiled_things():
    compiled = pf.compile(Net().eval())
    saved = pickle.dumps(compiled)
    for twin in (copy.deepcopy(compiled), pickle.loads(saved)):  # noqa: S301  # its own
        np.testing.assert_allclose(twin(X).tolist(), compiled(X).tolist(), rtol=1e-6)
        assert twin.fc is not compiled.fc
        twin.fc.weight.data.fill_(0)
        assert twin(X).tolist() != compiled(X).tolist()


class Pair(typing.NamedTuple):
    a: pf.Tensor
    b: float


@dataclasses.dataclass
class Batch:
    x: pf.Tensor
    weights: list
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: float


def test_arguments_of_every_kind():
    @pf.compile
    def f(pair, batch, *rest, named=None, settings=Settings(1.0), **others):
        total = pair.a * pair.b + batch.x * batch.scale * sum(batch.weights) * settings.scale
        for t in (*rest, *others.values(), *(named or [])):
            total = total + t
        return {"total": total, "batch": Batch(total, [total], batch.scale)}

    for scale in (1.0, 2.0, 1.0):
        batch = Batch(X, [X, X + 1], scale)
        got = f(Pair(X, 2.0), batch, X, named=[X, X], settings=Settings(scale), extra=X)
        want = f.function(Pair(X, 2.0), batch, X, named=[X, X], settings=Settings(scale), extra=X)
        assert got["total"].tolist() == want["total"].tolist()
        assert got["batch"].weights[0].tolist() == want["total"].tolist()
        assert got["batch"].scale == scale
    assert f.trace_count == 2
    assert f(Pair(X, 0.0), Batch(X, [X]))["total"].tolist() == [1.0, 4.0]


def test_functions_of_every_kind():
    class Called:
        k = 2.0

        def __call__(self, x):
            return x * self.k

    called = Called()
    compiled = pf.compile(called)
    assert compiled(X).tolist() == [2.0, 4.0]
    called.k = 3.0
    assert compiled(X).tolist() == [3.0, 6.0]
    assert pf.compile(functools.partial(pf.mul, X))(X).tolist() == [1.0, 4.0]
    assert pf.compile(pf.nn.functional.relu)(-X).tolist() == [0.0, 0.0]
    bound = pf.compile(called.__call__)
    called.k = 4.0
    assert bound(X).tolist() == [4.0, 8.0]
    assert pf.compile(compiled) is compiled


def generator(x):
    yield x


async def asynchronous(x):
    return x


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (generator, "generator is a generator"),
        (asynchronous, "asynchronous is asynchronous"),
        (Net, "not a class"),
        (3, "Received: int"),
    ],
    ids=["generator", "coroutine", "class", "number"],
)
def test_what_cannot_be_traced_is_refused_by_name(given, words):
    with pytest.raises(TypeError, match=words):
        pf.compile(given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dynamic": True}, "dynamic=True"),
        ({"mode": "max-autotune"}, "max-autotune"),
        ({"options": {"triton.cudagraphs": True}}, "triton.cudagraphs"),
        ({"options": {"recompile_limit": 0}}, "recompile_limit"),
    ],
    ids=["dynamic", "mode", "options", "limit"],
)
def test_settings_that_are_not_there_are_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words):
        pf.compile(lambda x: x, **settings)
    with pytest.raises(ValueError, match=words):
        pf.compile(**settings)


def test_settings():
    def f(x):
        return x if x.sum().item() > 0 else -x

    assert pf.compile(f, disable=True) is f
    net = Net()
    assert pf.compile(net, disable=True) is net
    for settings in ({"mode": "default"}, {"mode": "reduce-overhead", "dynamic": False}, {"options": {}}):
        free = pf.compile(f, **settings)
        with pytest.warns(RuntimeWarning, match="item"):
            seen = [free(x).tolist() for x in (X, -X)]
        assert seen == [[1.0, 2.0], [1.0, 2.0]]
    with pytest.raises(pf.TraceError, match="item"):
        pf.compile(f, fullgraph=True)(X)

    @pf.compile(fullgraph=True)
    def decorated(x):
        return x * 2

    assert decorated(X).tolist() == [2.0, 4.0]
    assert "1 traces" in decorated.explain()


def test_shapes_are_traced_up_to_a_bound(monkeypatch):
    monkeypatch.setattr("pyflame.compiling.compiled.MAX_TRACES", 5)
    f = pf.compile(lambda x: x * 2)
    sizes = [*range(1, 9), *range(1, 9)]
    with pytest.warns(RuntimeWarning, match="5 different kinds of arguments"):
        seen = [f(pf.ones([size])).tolist() for size in sizes]
    assert seen == [[2.0] * size for size in sizes]
    assert f.trace_count == 5


def test_numbers_that_change_at_every_call():
    f = pf.compile(lambda x, k: x * k)
    with pytest.warns(RuntimeWarning, match="8 different values"):
        seen = [f(X, float(k)).tolist() for k in range(12)]
    assert seen == [[k, 2.0 * k] for k in range(12)]
    assert f.trace_count == 8
