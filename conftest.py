"""Settings for every test and every example in a docstring."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

# Numerical libraries read these when they are first imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Each run of the tests compiles anew, and leaves nothing in the user's folders.
if "PYFLAME_CACHE_DIR" not in os.environ:
    os.environ["PYFLAME_CACHE_DIR"] = tempfile.mkdtemp(prefix="pyflame-tests-")
    atexit.register(shutil.rmtree, os.environ["PYFLAME_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def example_names(request: pytest.FixtureRequest, doctest_namespace: dict[str, object]) -> Iterator[None]:
    """Examples know `np` and `ops`, and make NumPy arrays."""
    if not isinstance(request.node, pytest.DoctestItem):
        yield
        return
    import numpy as np

    from emberharmony import ops
    from emberharmony.backend import use_backend

    doctest_namespace.update(np=np, ops=ops)
    with use_backend("numpy"):
        yield
