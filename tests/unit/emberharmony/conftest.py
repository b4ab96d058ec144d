"""Tables of samples: a module with SAMPLES runs each of them on every library.

A sample is (operation, arguments, reference, dtypes, options). Float arrays among the arguments
are cast to the dtype under test; the reference computes in float64 from the cast values.
"""

import importlib.util

import numpy as np
import pytest

from emberharmony import library
from emberharmony.dtypes import FLOAT, as_dtype, kind

LIBRARIES = [n for n, m in (("numpy", "numpy"), ("torch", "torch"), ("mlx", "mlx")) if importlib.util.find_spec(m)]

# Relative and absolute error allowed for a result of each dtype.
TOLERANCE = {
    "float32": (2e-5, 2e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
    "float64": (1e-12, 1e-12),
    "complex64": (2e-5, 1e-5),
}


def pytest_generate_tests(metafunc):
    if "sample" in metafunc.fixturenames:
        samples = metafunc.module.SAMPLES
        metafunc.parametrize("sample", samples, ids=[f"{s[0]}-{i}" for i, s in enumerate(samples)])
    own = [m.args[0] for m in metafunc.definition.iter_markers("parametrize")]
    if "name" in metafunc.fixturenames and not any("name" in names for names in own):
        metafunc.parametrize("name", LIBRARIES)


@pytest.fixture
def lib(name):
    return library(name)


def mapped(value, change):
    """`change` applied to the float arrays inside nested arguments."""
    if isinstance(value, list | tuple):
        return type(value)(mapped(v, change) for v in value)
    return change(value) if isinstance(value, np.ndarray) else value


def same(got, want, where):
    """Equal structure, shape and values, within the tolerance of the result's dtype."""
    if isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for g, w in zip(got, want, strict=True):
            same(g, w, where)
        return
    want = np.asarray(want)
    assert got.shape == want.shape, f"{where}: shape {got.shape}, expected {want.shape}"
    rtol, atol = TOLERANCE.get(got.dtype.name, (0, 0))
    wide = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(wide, want, rtol, atol, err_msg=where)


def host(lib, found):
    """Results as NumPy arrays; every one has to be an array of the library."""
    if isinstance(found, list | tuple):
        return type(found)(host(lib, f) for f in found)
    if isinstance(found, int):
        return np.asarray(found)
    assert lib.is_array(found)
    return lib.to_numpy(found)


@pytest.fixture
def check():
    """Run one sample in each of its dtypes and compare with the reference."""

    def run(sample, name):
        op, args, reference, dtypes, options = sample
        lib = library(name)
        for dtype in dtypes:
            wanted = as_dtype(dtype)

            def cast(x, wanted=wanted):
                return x.astype(wanted) if x.dtype == np.float64 else x

            cast_args = mapped(args, cast)
            with np.errstate(all="ignore"):
                expected = reference(*[mapped(a, _wide) for a in cast_args])
            known = [mapped(a, lib.from_numpy) for a in cast_args]
            found = getattr(lib, op)(*known, **options)
            same(host(lib, found), expected, f"{op} {dtype} on {name}")
            first = found[0] if isinstance(found, list | tuple) else found
            if lib.is_array(first) and name != "numpy":
                reference_dtype = _first(getattr(library("numpy"), op)(*cast_args, **options)).dtype
                assert lib.dtype(first) == reference_dtype, f"{op} {dtype} on {name}"

    return run


def _wide(x):
    return x.astype(np.float64) if kind(x.dtype) == FLOAT else x


def _first(found):
    return found[0] if isinstance(found, list | tuple) else found
