"""Settings for every test and every example in a docstring."""

import atexit
import gc
import importlib.util
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# A parent that ignores SIGINT (nohup, a background job of a shell) hands that on: tests that send it could not work.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Numerical libraries read these when they are first imported.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# A fault of the engine is an error here, not a plan that is slower.
os.environ.setdefault("PYFLAME_RAISE_FAULTS", "1")

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--shuffle SEED`` runs the tests in another order; equal seeds give equal orders."""
    parser.addoption("--shuffle", metavar="SEED", default=None, help="run the tests in an order drawn with this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the order: files first, then what is in each, so that fixtures of a module are made once."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw = random.Random(seed)
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]


# Its wheel for the CPU is there for one version of Python only: elsewhere, tests that need it are skipped and listed.
_WITHOUT_TORCH = importlib.util.find_spec("torch") is None
_NEEDS_TORCH = "needs torch, which is not installed"


def _is_about_torch(error: BaseException | None) -> bool:
    """Whether torch was missing, also where that led to another error."""
    while error is not None:
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("torch", "torchvision"):
            return True
        if type(error).__name__ == "MissingExtra" and "pyflame[torch]" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


class _ModuleWithoutTorch(pytest.Module):
    """A file of tests that is skipped where it imports torch."""

    def _getobj(self) -> object:
        try:
            return super()._getobj()
        except self.CollectError as error:
            if "No module named 'torch" not in str(error):
                raise
            pytest.skip(_NEEDS_TORCH, allow_module_level=True)


def pytest_configure(config: pytest.Config) -> None:
    """The same files are looked at for examples."""
    if _WITHOUT_TORCH:
        config.option.doctest_ignore_import_errors = True


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Files that import torch are skipped where there is none."""
    return _ModuleWithoutTorch.from_parent(parent, path=module_path) if _WITHOUT_TORCH else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Tests that import torch, or use what needs it, are skipped where there is none."""
    try:
        return (yield)
    except BaseException as error:
        if _WITHOUT_TORCH and _is_about_torch(error):
            pytest.skip(_NEEDS_TORCH)
        raise


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count and list what was left out for want of torch."""
    reports = terminalreporter.stats.get("skipped", [])
    left_out = sorted({report.nodeid for report in reports if "torch" in str(report.longrepr)})
    if _WITHOUT_TORCH and left_out:
        terminalreporter.section(f"left out without torch: {len(left_out)} tests and files")
        for name in left_out:
            terminalreporter.line(name)


def pytest_collection_finish() -> None:
    """What tens of thousands of tests are made of stays until the end: collections need not look at it each time."""
    gc.collect()
    gc.freeze()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which order it was."""
    seed = config.getoption("--shuffle")
    return None if seed is None else f"order: --shuffle {seed}"
