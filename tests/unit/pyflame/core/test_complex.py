"""Complex tensors against torch: values, types, gradients, views, promotion, and what is refused."""

import io
import operator
import pickle
import warnings

import numpy as np
import pytest

import pyflame as pf
from pyflame_rt.graph.errors import DTypeMismatchError

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal((3, 4)) + 1j * RNG.standard_normal((3, 4)) for _ in range(2))
R = RNG.standard_normal((3, 4))
TOLERANCE = {np.dtype(np.complex64): 3e-5, np.dtype(np.complex128): 1e-11}
TOLERANCE |= {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-11}


def plain(tensor):
    return tensor.detach().resolve_conj().numpy()


def close(found, wanted):
    have, want = plain(found), plain(wanted)
    assert have.dtype == want.dtype
    assert have.shape == want.shape
    np.testing.assert_allclose(have, want, rtol=TOLERANCE[want.dtype], atol=TOLERANCE[want.dtype])


def same(function, *arrays):
    """Values and gradients of a function of both frameworks, and of it compiled."""
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    wanted = function(torch, *theirs)
    seed = np.random.default_rng(1).standard_normal(wanted.shape)
    seed = (seed * (1 - 0.5j) if wanted.is_complex() else seed).astype(plain(wanted).dtype)
    wanted.backward(torch.tensor(seed))
    for run in (function, pf.compile(lambda *given: function(pf, *given), fullgraph=False)):
        ours = [pf.tensor(x, requires_grad=True) for x in arrays]
        found = run(pf, *ours) if run is function else run(*ours)
        close(found, wanted)
        found.backward(pf.tensor(seed))
        for mine, yours in zip(ours, theirs, strict=True):
            close(mine.grad, yours.grad)


def both_widths(*arrays):
    narrow = [x.astype(np.complex64 if x.dtype.kind == "c" else np.float32) for x in arrays]
    return [narrow, list(arrays)]


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("function", OPERATORS)
@pytest.mark.parametrize("kinds", ["complex-complex", "complex-real", "real-complex"])
def test_arithmetic(function, kinds):
    first, second = {"complex-complex": (A, B), "complex-real": (A, R), "real-complex": (np.abs(R) + 0.5, B)}[kinds]
    for arrays in both_widths(first, second):
        same(lambda L, x, y: function(x, y), *arrays)


@pytest.mark.parametrize("function", OPERATORS)
@pytest.mark.parametrize("number", [2.5, 2, 1.5 + 2j])
def test_numbers(function, number):
    for arrays in both_widths(A):
        same(lambda L, x: function(x, number), *arrays)
        same(lambda L, x: function(number, x), *arrays)
    same(lambda L, x: function(x, 1.5 + 2j), np.abs(R).astype(np.float32) + 0.1)


@pytest.mark.parametrize("power", [-1, 0, 0.5, 1, 2, 3])
def test_powers(power):
    same(lambda L, x: x**power, A)


UNARY = "exp log sqrt sin cos tan sinh cosh tanh neg abs angle conj real imag reciprocal square sgn"


@pytest.mark.parametrize("name", UNARY.split())
def test_functions(name):
    for arrays in both_widths(A):
        same(lambda L, x: getattr(L, name)(x), *arrays)


FORMS = {
    "matmul": (lambda L, x, y: x @ y.T, A, B),
    "vector": (lambda L, x, y: x @ y[0], A, B),
    "stacked": (lambda L, x, y: L.bmm(x[None].expand(2, 3, 4), y.mT[None].expand(2, 4, 3)), A, B),
    "einsum": (lambda L, x, y: L.einsum("ij,kj->ik", x, y), A, B),
    "vdot": (lambda L, x, y: L.vdot(x[0], y[0]), A, B),
    "outer": (lambda L, x, y: L.outer(x[0], y[0]), A, B),
    "addmm": (lambda L, x, y: L.addmm(x @ y.T, x, y.T, beta=0.5, alpha=2), A, B),
    "adjoint": (lambda L, x: x.adjoint() @ x.H.mH, A),
    "sum": (lambda L, x: x.sum(), A),
    "mean": (lambda L, x: x.mean(0), A),
    "prod": (lambda L, x: x.prod(1), A),
    "cumsum": (lambda L, x: x.cumsum(1), A),
    "norm": (lambda L, x: x.norm() + L.linalg.norm(x[0]), A),
    "var": (lambda L, x: x.var(1), A),
    "std": (lambda L, x: x.std(), A),
    "complex": (lambda L, x, y: L.complex(x, y), R, R + 1),
    "polar": (lambda L, x, y: L.polar(x, y), np.abs(R), R),
    "pairs": (lambda L, x: L.view_as_real(x), A),
    "numbers": (lambda L, x: L.view_as_complex(x), RNG.standard_normal((3, 4, 2))),
    "real angle": (lambda L, x: L.angle(x), R),
    "abs at 0": (lambda L, x: L.abs(x * 0) + L.angle(x * 0), A),
    "cat": (lambda L, x: L.cat([x.reshape(4, 3).T, x[:, 1:3].repeat(1, 2)], 0), A),
    "stack": (lambda L, x, y: L.stack([x, y], 1).transpose(0, 2).flatten()[::2], A, B),
    "where": (lambda L, x, y: L.where(L.ones(3, 4) > 0, x, y), A, B),
    "rows": (lambda L, x: x[[0, 2, 0]] + L.index_select(x, 0, L.tensor([1, 1, 0])), A),
    "pad": (lambda L, x: L.nn.functional.pad(x, (1, 2)), A),
    "moved": (lambda L, x: L.roll(L.flip(x, [0]), 1, 1).tril() + x.expand(2, 3, 4)[1], A),
    "filled": (lambda L, x: x.masked_fill(L.eye(3, 4) > 0, 2j) + x.diagonal().sum(), A),
    "wider": (lambda L, x: x.to(L.complex128) * 1j, A.astype(np.complex64)),
    "from real": (lambda L, x: x.to(L.complex64) * (1 + 1j), R.astype(np.float32)),
    "lerp": (lambda L, x, y: x.lerp(y, 0.3), A, B),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    function, *arrays = FORMS[name]
    same(function, *arrays)


def in_place(L, x):
    y = x * 1
    y.mul_(2j).add_(1)
    y[0] = 1j
    y[1, 2] = 3.0
    y.real = y.imag * 2
    y.imag[2] += 1
    L.view_as_real(y)[..., 1].mul_(3)
    return y


def test_parts_are_views_that_write_through():
    same(in_place, A)
    x = pf.zeros(2, 2)
    pf.view_as_complex(x)[1] = 2 - 3j
    assert x.tolist() == [[0, 0], [2, -3]]
    x = pf.view_as_real(pf.ones(3, dtype=pf.complex64)[1:])
    assert (x.stride(), x.storage_offset()) == ((2, 1), 2)
    with pytest.raises(RuntimeError, match="side by side"):
        pf.view_as_complex(pf.zeros(2, 2).T)


def test_second_derivatives():
    def twice(L):
        x = L.tensor(A, requires_grad=True)
        (g,) = L.autograd.grad(((x * x).exp().abs() ** 2).sum(), x, create_graph=True)
        (g.abs() ** 2).sum().backward()
        return x.grad

    ours, theirs = plain(twice(pf)), plain(twice(torch))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_complex_loss_has_no_gradient():
    with pytest.raises(RuntimeError, match="one real number"):
        pf.tensor(A, requires_grad=True).sum().backward()


# ------------------------------------------------------------------ types

KINDS = ["bool", "uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_promotion(first, second):
    for shapes in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
        ones = [
            [L.ones(s, dtype=getattr(L, k)) for s, k in zip(shapes, (first, second), strict=True)] for L in (torch, pf)
        ]
        assert str(torch.result_type(*ones[0])) == f"torch.{pf.result_type(*ones[1]).name}"
    for number in (True, 2, 2.5, 1j):
        theirs, ours = (L.result_type(L.ones(2, dtype=getattr(L, first)), number) for L in (torch, pf))
        assert str(theirs) == f"torch.{ours.name}"


def test_what_types_say():
    x = pf.tensor([1 + 2j, 3])
    assert (x.dtype, x.is_complex(), pf.is_complex(x), x.is_floating_point()) == (pf.complex64, True, True, False)
    assert (pf.cfloat, pf.cdouble, pf.tensor(A).dtype) == (pf.complex64, pf.complex128, pf.complex128)
    assert (pf.complex64.itemsize, pf.complex64.is_complex, pf.complex64.to_real()) == (8, True, pf.float32)
    assert (x.type(), pf.finfo(pf.complex128).bits) == ("torch.ComplexFloatTensor", 64)
    assert (x[0].item(), complex(x[0].item()), x.tolist()) == (1 + 2j, 1 + 2j, [1 + 2j, 3 + 0j])
    assert str(x) == "tensor([1.+2.j, 3.+0.j], dtype=complex64)"
    assert pf.tensor([1j], dtype=pf.complex128).numpy().dtype == np.complex128
    assert pf.from_numpy(np.array([1j])).dtype is pf.complex128
    assert {pf.rand(2, dtype=k).dtype for k in (pf.complex64, pf.complex128)} == {pf.complex64, pf.complex128}


def test_random_numbers():
    pf.manual_seed(0)
    normal, even = (f(20_000, dtype=pf.complex64).numpy() for f in (pf.randn, pf.rand))
    assert abs(np.var(normal) - 1) < 0.05
    assert abs(np.var(normal.real) - 0.5) < 0.03
    assert 0 <= even.real.min() < 0.01 < 0.99 < even.imag.max() < 1


@pytest.mark.parametrize("convert", ["float", "double", "half", "int"])
def test_to_real_numbers_warns(convert):
    x = pf.tensor(A)
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        found = getattr(x, convert)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = getattr(torch.tensor(A), convert)()
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    assert x.bool().all()


def test_conversion_has_the_gradient_of_torch():
    def back(L):
        x = L.tensor(A, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (x.double() ** 2).sum().backward()
        return plain(x.grad)

    np.testing.assert_allclose(back(pf), back(torch))


REFUSED = {
    "relu": pf.relu, "Greater": lambda x: x > 0, "TopK": lambda x: x.sort(), "ArgMax": lambda x: x.argmax(),
    "Clip": lambda x: x.clamp(0, 1), "floor": lambda x: x.floor(), "trunc": lambda x: x.trunc(), "Softmax":
    lambda x: x.softmax(0), "mse_loss": lambda x: pf.nn.functional.mse_loss(x, x), "dropout": lambda x: pf.dropout(x),
    "Mod": lambda x: x % 2, "hypot": lambda x: pf.hypot(x, x), "unique": lambda x: x.unique(), "cdist":
    lambda x: pf.cdist(x, x), "nan_to_num": lambda x: x.nan_to_num(), "normal": lambda x: pf.normal(x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, pf.zeros(1, 4, dtype=pf.int64), x, "amax"), "Sign":
    lambda x: x.sign(), "instance_norm": lambda x: pf.nn.functional.instance_norm(x[None]), "does not become":
    lambda x: pf.sum(x, dtype=pf.float32), "float32 or float64": lambda x: pf.linalg.svd(x), "add_ gives":
    lambda x: pf.ones(3, 4).add_(x), "do not become": lambda x: pf.tensor(A, dtype=pf.float32),
    "batch_norm": lambda x: pf.nn.functional.batch_norm(x, pf.zeros(4), pf.ones(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_defined_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"(?i){name}"):
        REFUSED[name](pf.tensor(A))


def test_refusals_say_what_to_do():
    with pytest.raises(DTypeMismatchError, match="view_as_real"):
        pf.tensor(A).max()
    with pytest.raises(TypeError, match="complex"):
        pf.imag(pf.ones(2))
    with pytest.raises(TypeError, match="two of float64"):
        pf.complex(pf.ones(2), pf.ones(2, dtype=pf.float64))


# ------------------------------------------------------------------ files, optimizers


@pytest.mark.parametrize("form", ["pf", "torch", "npz", "safetensors"])
def test_files(form):
    sink = io.BytesIO()
    x = pf.tensor(A.astype(np.complex64))
    pf.save({"x": x}, sink, format=form)
    np.testing.assert_array_equal(pf.load(io.BytesIO(sink.getvalue()))["x"].numpy(), x.numpy())
    if form == "torch":
        read = torch.load(io.BytesIO(sink.getvalue()), weights_only=True)["x"]
        np.testing.assert_array_equal(read.numpy(), x.numpy())
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).numpy(), x.numpy())  # noqa: S301 -- our own
    np.testing.assert_array_equal(pf.from_torch(pf.to_torch(x)).numpy(), x.numpy())


def test_a_type_that_safetensors_lack():
    with pytest.raises(TypeError, match="complex128"):
        pf.save({"x": pf.tensor(A)}, io.BytesIO(), format="safetensors")


OPTIMIZERS = "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam Rprop ASGD"


@pytest.mark.parametrize("name", OPTIMIZERS.split())
def test_optimizers_move_both_parts(name):
    settings = {"lr": 0.1} | ({"momentum": 0.9, "weight_decay": 0.01} if name == "SGD" else {})
    found = []
    for L in (torch, pf):
        p = L.nn.Parameter(L.tensor([1 + 2j, -1j, 0.3]))
        optimizer = getattr(L.optim, name)([p], **settings)
        for _ in range(5):
            optimizer.zero_grad()
            (((p - (0.5 + 0.5j)).abs()) ** 2).sum().backward()
            optimizer.step()
        found.append(p.detach().numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_optimizers_of_matrices_refuse_complex_parameters(name):
    with pytest.raises(TypeError, match="complex"):
        getattr(pf.optim, name)([pf.nn.Parameter(pf.tensor(A))])
