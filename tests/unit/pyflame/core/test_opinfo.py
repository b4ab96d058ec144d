"""Every function against PyTorch, on the samples of PyTorch's own operator database."""

from itertools import islice
from operator import attrgetter
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
# The types of torch that are ours too.
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
# Relative, and absolute below 1. Gradients in float64 and float32 go through more operators than results.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
GRADIENT_TOLERANCE = TOLERANCE | {torch.float64: 1e-8, torch.float32: 1e-4}
SAMPLES = {torch.float64: 60, torch.float32: 60, torch.int64: 60, torch.bool: 60}  # 12 of the other types
# "name dtype forward" or "name dtype backward" -> why the two differ; a line that is no longer needed fails.
# Where "torch:" begins the reason, torch rounds on the way and misses the truth, which is torch's result in float64 on
# the same values: there ours must be within the same tolerance of the truth, and no farther from it than torch is.
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
    if name == "nn.functional.embedding":
        return lambda weight, rows, **settings: pf.nn.functional.embedding(rows, weight, **settings)
    if name == "nn.functional.embedding_bag":
        return lambda weight, rows, **settings: pf.nn.functional.embedding_bag(rows, weight, **settings)
    if name == "where":
        return lambda a, condition, b: pf.where(condition, a, b)
    if name.startswith("nn.functional."):
        return getattr(pf.nn.functional, name.removeprefix("nn.functional."))
    for part in ("linalg", "signal.windows", "special"):
        if name.startswith(f"{part}."):
            return getattr(attrgetter(part)(pf), name.removeprefix(f"{part}."))
    found = getattr(pf, name, None)
    if found is None or isinstance(found, pf.DType):
        found = getattr(pf.Tensor, name)
    return found.fget if isinstance(found, property) else found


def compare_values(name, got, want, tolerance):
    if EXCEPTIONS.get(name, "").startswith("places"):
        got, want = got[:1], want[:1]
    for ours, theirs in zip(got, want, strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        close(ours, theirs, tolerance)


def close(ours, theirs, tolerance):
    got, want = ours.numpy().astype(np.float64), plain(theirs)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def their_gradients(sample, want, seed):
    asked = [t for t in leaves([sample.input, sample.args, [*sample.kwargs.values()]]) if _asks(t, torch.Tensor)]
    return torch.autograd.grad(want, asked, seed, allow_unused=True, materialize_grads=True)


def our_gradients(arguments, got, seed):
    asked = [t for t in leaves([arguments[0], arguments[1], [*arguments[2].values()]]) if _asks(t, pf.Tensor)]
    return pf.autograd.grad(got, asked, convert(seed), allow_unused=True, materialize_grads=True)


def compare_gradients(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        close(ours, theirs, GRADIENT_TOLERANCE[theirs.dtype])


def no_farther(got, want, truth):
    """Ours is at least as near to the truth as torch's result in half the bits is."""
    for ours, theirs, true in zip(got, want, truth, strict=True):
        exact = plain(true)
        near, far = largest_error(ours.numpy().astype(np.float64), exact), largest_error(plain(theirs), exact)
        assert near <= far, f"ours is {near} from the truth, torch's result {far}"


def plain(value):
    return value.detach().to(torch.float64).numpy(force=True)


def largest_error(values, truth):
    """Relative, and absolute below 1; what is no number where there should be one is infinitely far."""
    with np.errstate(invalid="ignore"):
        errors = np.abs(values - truth) / (1 + np.abs(truth))
    wrong = np.where(values == truth, 0, np.where(np.isnan(errors), np.where(np.isnan(truth), 0, np.inf), errors))
    return wrong.max(initial=0)


def widened(value):
    """The same in float64, for the truth."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in (torch.float16, torch.bfloat16):
            return value
        return value.detach().double().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(widened(item) for item in value)
    return {k: widened(v) for k, v in value.items()} if isinstance(value, dict) else value


def _asks(value, kind):
    return isinstance(value, kind) and value.requires_grad


def types_of(name):
    return [dtype for dtype in TYPES if OPS[name].supports_dtype(dtype, "cpu")]


def differentiable(name, dtype):
    op = OPS[name]
    return dtype.is_floating_point and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


WRONG = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


class Examined:
    """How many samples of an operator agree one way, and the first that does not agree with torch, or with neither."""

    def __init__(self):
        self.agreeing, self.inexact, self.wrong = 0, "", ""

    def compare(self, sample, check, exact=None):
        try:
            check()
            self.agreeing += 1
        except WRONG as error:
            self.inexact = self.inexact or f"{sample.summary()}: {error!r}"
            try:
                if exact is None:
                    raise
                exact()
                self.agreeing += 1
            except WRONG as second:
                self.wrong = self.wrong or f"{sample.summary()}: {second!r}"

    def state(self):
        return "wrong" if self.wrong else "inexact" if self.inexact else "equal"


def is_random(name, settings):
    return bool(settings.get("dropout_p")) or (name == "nn.functional.rrelu" and settings.get("training", False))


def examine(name, dtype, count=None):
    """Every sample of a type: forward, and backward where torch has it."""
    op, asked = OPS[name], differentiable(name, dtype)
    forward, backward = Examined(), Examined()
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=asked), count or SAMPLES.get(dtype, 12)):
        if is_random(name, sample.kwargs):
            continue
        # Before torch runs: it may write into its arguments.
        arguments = [convert(sample.input), convert(sample.args), convert(sample.kwargs)]
        want = leaves(op(sample.input, *sample.args, **sample.kwargs))
        if all(isinstance(t, torch.Tensor) and not t.is_complex() for t in want):
            examine_sample(op, dtype, sample, arguments, want, (forward, backward))
    return {"forward": forward, "backward": backward}


def examine_sample(op, dtype, sample, arguments, want, results):
    name, got, (forward, backward) = op.name, [], results

    def values():
        got.extend(leaves(function(name)(arguments[0], *arguments[1], **arguments[2])))
        compare_values(name, got, want, TOLERANCE.get(dtype, 1e-5))

    narrow = dtype in (torch.float16, torch.bfloat16)
    wide = type(sample)(widened(sample.input), args=widened(sample.args), kwargs=widened(sample.kwargs))
    truth = leaves(op(wide.input, *wide.args, **wide.kwargs)) if narrow else want

    def exact_values():
        compare_values(name, got, rounded(truth, want), TOLERANCE[dtype])
        no_farther(got, want, truth)

    forward.compare(sample, values, exact_values if narrow else None)
    if not got or not want[0].requires_grad:
        return
    seed = torch.linspace(-1, 1.5, want[0].numel(), dtype=want[0].dtype).reshape(want[0].shape)
    theirs, found = their_gradients(sample, want[0], seed), []

    def gradients():
        found.extend(our_gradients(arguments, got[0], seed))
        compare_gradients(found, theirs)

    def exact_gradients():
        grads = their_gradients(wide, truth[0], seed.to(truth[0].dtype))
        compare_gradients(found, rounded(grads, theirs))
        no_farther(found, theirs, grads)

    backward.compare(sample, gradients, exact_gradients if narrow else None)


def rounded(exact, like):
    return [t.to(w.dtype) for t, w in zip(exact, like, strict=True)]


def agree(name, dtype, count=None):
    """Every sample agrees, but for what is listed, which must not."""
    found = examine(name, dtype, count)
    for way, result in found.items():
        reason = DIFFERENT.get(f"{name} {str(dtype).removeprefix('torch.')} {way}", "")
        listed = "inexact" if reason.startswith("torch:") else "wrong" if reason else "equal"
        state = result.state()
        if count is not None and state == "equal":  # a few samples need not show what all of them do
            continue
        assert state == listed, f"{name} {dtype} {way} is {state}, listed as {listed}: {result.wrong or result.inexact}"
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES[::4])
def test_a_few_samples(name):
    dtype = torch.float64 if OPS[name].supports_dtype(torch.float64, "cpu") else torch.int64
    assert agree(name, dtype, 3)["forward"].agreeing


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES[2::12])
def test_a_few_samples_of_half_the_bits(name):
    for dtype in (torch.float16, torch.bfloat16):
        if dtype in types_of(name):
            agree(name, dtype, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_all_samples_of_all_types(name):
    assert sum(agree(name, dtype)["forward"].agreeing for dtype in types_of(name))


def test_differences_have_reasons():
    assert all(len(reason) > 10 for reason in DIFFERENT.values())
    assert {key.split()[0] for key in DIFFERENT} <= set(NAMES)
    wrong = [key.split()[-1] for key, reason in DIFFERENT.items() if not reason.startswith("torch:")]
    assert set(wrong) <= {"backward"}
    assert len(wrong) < 0.01 * sum(differentiable(name, dtype) for name in NAMES for dtype in types_of(name))


def test_the_list_is_long_and_known():
    assert len(NAMES) >= 420
    assert set(NAMES) <= set(OPS)
