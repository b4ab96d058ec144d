"""Models of torch saved as TorchScript, and compared with what a session of ours makes of the file."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt

torch = pytest.importorskip("torch")


def jit(make, *args, **kwargs):
    """Call torch.jit: it warns of its own deprecation on every call, which is nothing to us."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **kwargs)


def save_traced(model, example, path: Path):
    """Trace and save; the trace."""
    with torch.no_grad():
        traced = jit(torch.jit.trace, model, example, check_trace=False)
    jit(traced.save, str(path))
    return traced


def save_scripted(model, path: Path):
    """Script and save; the script."""
    scripted = jit(torch.jit.script, model)
    jit(scripted.save, str(path))
    return scripted


def leaves(value):
    """The tensors of a result, in the order of our outputs; lists stay lists."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [value]


def close(got, want, rtol=1e-5):
    """Equal shape and type, and values within a relative error of the largest."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            close(g, w, rtol)
        return
    if want is None:
        assert got is None
        return
    expected = want.detach().numpy() if isinstance(want, torch.Tensor) else np.asarray(want)
    assert np.shape(got) == expected.shape
    if isinstance(want, torch.Tensor):
        assert got.dtype == expected.dtype
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3) if expected.dtype.kind in "fc" else 0
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * largest)


def check(path: Path, model, inputs, rtol=1e-5):
    """Run the file in a session and compare it with the model."""
    session = pyflame_rt.InferenceSession(path)
    names = [info.name for info in session.get_inputs()]
    fed = leaves(tuple(inputs))
    feed = {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in zip(names, fed, strict=False)}
    assert len(feed) == len(fed)
    with torch.no_grad():
        want = leaves(model(*[_copied(v) for v in inputs]))
    got = session.run(None, feed)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        close(g, w, rtol)
    return session


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value
