"""Every function against PyTorch, on the samples of PyTorch's own operator database."""

from itertools import islice
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import pyflame as pf

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

LISTED = Path(__file__).with_name("opinfo_names.txt").read_text("utf-8").splitlines()
# name -> what is not compared, and why
EXCEPTIONS = dict(line.split("  # ", 1) for line in LISTED if "  # " in line)
NAMES = sorted(line.split("  # ")[0] for line in LISTED)
OPS = {op.name: op for op in reversed(op_db)}
FORWARD = (torch.float64, torch.float32, torch.int64, torch.bool)
# Every operator of ours rounds its result; torch rounds once at the end of what it calls one operator: 8 units.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2**-7, torch.bfloat16: 2**-4}
MORE = (torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.int8, torch.uint8)
# "name dtype" -> why the two differ; a line that is no longer needed fails.
DIFFERENT = dict(
    line.split("  # ", 1) for line in Path(__file__).with_name("opinfo_exceptions.txt").read_text("utf-8").splitlines()
)


def convert(value):
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        half = plain.dtype is torch.bfloat16
        made = pf.tensor(plain.float().numpy().astype(ml_dtypes.bfloat16) if half else plain.numpy())
        return made.requires_grad_() if value.requires_grad else made
    if isinstance(value, torch.Size):
        return list(value)
    if isinstance(value, torch.dtype):
        return pf.dtypes.to_dtype(value)
    if isinstance(value, (list, tuple)):
        return type(value)(convert(item) for item in value)
    if isinstance(value, dict):
        return {key: convert(item) for key, item in value.items() if key not in ("device", "layout", "memory_format")}
    return value


def leaves(value):
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def function(name):
    """The function of the package, or the method of tensors; arguments in PyTorch's sample order."""
    if name == "einsum":
        return lambda operands, equation: pf.einsum(equation, *operands)
    if name == "where":
        return lambda a, condition, b: pf.where(condition, a, b)
    if name.startswith("nn.functional."):
        return getattr(pf.nn.functional, name.removeprefix("nn.functional."))
    if name.startswith("linalg."):
        return getattr(pf.linalg, name.removeprefix("linalg."))
    found = getattr(pf, name, None)
    if found is None or isinstance(found, pf.DType):
        found = getattr(pf.Tensor, name)
    return found.fget if isinstance(found, property) else found


def compare_values(name, got, want, dtype):
    only_values = EXCEPTIONS.get(name, "").startswith("places")
    for ours, theirs in zip(got[:1] if only_values else got, want, strict=False):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        expected = theirs.detach().to(torch.float64).numpy()
        tolerance = TOLERANCE.get(dtype, 1e-5)
        np.testing.assert_allclose(
            ours.numpy().astype(np.float64), expected, rtol=tolerance, atol=tolerance, equal_nan=True
        )


def compare_gradients(sample, arguments, got, want):
    theirs = [t for t in leaves([sample.input, sample.args, [*sample.kwargs.values()]]) if _asks(t, torch.Tensor)]
    ours = [t for t in leaves(arguments) if _asks(t, pf.Tensor)]
    seed = torch.linspace(-1, 1.5, want.numel(), dtype=want.dtype).reshape(want.shape)
    expected = torch.autograd.grad(want, theirs, seed, allow_unused=True, materialize_grads=True)
    found = pf.autograd.grad(got, ours, pf.tensor(seed.numpy()), allow_unused=True, materialize_grads=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-8, atol=1e-8)


def _asks(value, kind):
    return isinstance(value, kind) and value.requires_grad


def check(name, dtype, count):
    op = OPS[name]
    differentiable = dtype is torch.float64 and op.supports_autograd and "gradient" not in EXCEPTIONS.get(name, "")
    compared = 0
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), count):
        want = leaves(op(sample.input, *sample.args, **sample.kwargs))
        if not all(isinstance(t, torch.Tensor) and not t.is_complex() for t in want):
            continue
        arguments = [convert(sample.input), convert(sample.args), convert(sample.kwargs)]
        got = leaves(function(name)(arguments[0], *arguments[1], **arguments[2]))
        compare_values(name, got, want, dtype)
        if differentiable and want[0].requires_grad:
            compare_gradients(sample, [arguments[0], arguments[1], [*arguments[2].values()]], got[0], want[0])
        compared += 1
    return compared


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES[::4])
def test_a_few_samples(name):
    assert check(name, torch.float64 if OPS[name].supports_dtype(torch.float64, "cpu") else torch.int64, 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_all_types(name):
    compared = [check(name, dtype, 60) for dtype in FORWARD if OPS[name].supports_dtype(dtype, "cpu")]
    assert sum(compared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_samples_of_smaller_types(name):
    for dtype in MORE:
        if not OPS[name].supports_dtype(dtype, "cpu"):
            continue
        if f"{name} {str(dtype).removeprefix('torch.')}" not in DIFFERENT:
            check(name, dtype, 12)
            continue
        with pytest.raises((AssertionError, RuntimeError, TypeError, ValueError)):
            check(name, dtype, 12)


def test_differences_have_reasons():
    assert all(len(reason) > 10 for reason in DIFFERENT.values())
    assert {key.split()[0] for key in DIFFERENT} <= set(NAMES)
    assert len(DIFFERENT) < 0.02 * len(NAMES) * len(MORE)


def test_the_list_is_long_and_known():
    assert len(NAMES) >= 300
    assert set(NAMES) <= set(OPS)
