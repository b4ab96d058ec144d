"""Every class and function of listed modules, called with junk: documented errors that no library's insides show in."""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import io
import signal
import warnings
from typing import Any

import numpy as np
import pytest

import pyflame as pf
import pyflame_rt

ITSELF: list[Any] = [1.0]
ITSELF.append(ITSELF)
JUNK: dict[str, Any] = {
    "none": None, "text": "frog", "nan": float("nan"), "inf": float("inf"), "minus": -7, "huge": 10**30, "nothing": [],
    "ragged": [[1.0], [1.0, 2.0]], "dict": {"a": 1}, "object": object(), "itself": ITSELF, "texts": np.array(["a"]),
    "empty": np.zeros((0, 3), np.float32), "nul": "a\0b",
}  # fmt: skip
# The framework keeps PyTorch's errors, the runtime has a tree of its own; the rest is nobody's answer.
TREES = {
    "pyflame": (pyflame_rt.PyFlameRTError, TypeError, ValueError, IndexError, RuntimeError),
    "pyflame_rt": (pyflame_rt.PyFlameRTError, TypeError),
}
NOBODYS = (ArithmeticError, UnicodeError, RecursionError, AttributeError, KeyError, AssertionError)
MODULES = (
    "pyflame.fft", "pyflame_rt.opt", "pyflame_rt.memory", "pyflame_rt.exporters",
)  # fmt: skip
PLAUSIBLE = {
    "optimizer": lambda: pf.optim.SGD(parameters(), lr=0.1),
    "params": lambda: parameters(),
    "dataset": lambda: pf.data.TensorDataset(pf.ones([3, 4])),
    "model": lambda: pf.nn.Linear(4, 2),
    "graph": lambda: graph(),
    "input": lambda: pf.ones([3, 4]),
    "path": lambda: "model.onnx",
}


def parameters() -> list[Any]:
    return [pf.nn.Parameter(pf.ones([3, 4]))]


def graph() -> pyflame_rt.Graph:
    made = pyflame_rt.Graph("small")
    made.add_input("x", ["N", 4])
    made.add_node("relu", "Relu", ["x"], ["y"])
    made.add_output("y", ["N", 4])
    return made


def entries(module: str) -> list[tuple[str, Any]]:
    home = importlib.import_module(module)
    listed = [(name, getattr(home, name)) for name in home.__all__]
    return [
        (n, f)
        for n, f in listed
        if callable(f) and not (isinstance(f, type) and issubclass(f, enum.Enum | BaseException))
    ]


def calls(function: Any) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """All required arguments of one kind; each argument in turn, with the others as they should be."""
    try:
        given = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
    required = [p for p in given if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    optional = [p for p in given if p.default is not p.empty and p.kind is not p.POSITIONAL_ONLY]
    found = [(name, [value] * len(required), {}) for name, value in JUNK.items() if required]
    good = [PLAUSIBLE.get(p.name, lambda: 2)() for p in required]
    for i, parameter in enumerate(required):
        for name, value in JUNK.items():
            found.append((f"{parameter.name}={name}", [*good[:i], value, *good[i + 1 :]], {}))
    for parameter in optional:
        for name, value in JUNK.items():
            found.append((f"{parameter.name}={name}", good, {parameter.name: value}))
    return found


class Hangs(BaseException):
    """A call takes longer than any of these should."""


def _ring(*_: Any) -> None:
    raise Hangs


@pytest.mark.parametrize("module", MODULES)
def test_junk_is_refused_in_words(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree, wrong = TREES[module.partition(".")[0]], []
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        for name, function in entries(module):
            for what, args, kwargs in calls(function):
                said = answer(function, args, kwargs, tree)
                if said:
                    wrong.append(f"{name}({what}): {said}")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not wrong, f"{len(wrong)} of them: " + "; ".join(wrong[:10])


def answer(function: Any, args: list[Any], kwargs: dict[str, Any], tree: tuple[type, ...]) -> str:
    """What is wrong with how a call ended."""
    signal.setitimer(signal.ITIMER_REAL, 60)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except Hangs:
        return "no answer within a minute"
    except BaseException as error:  # noqa: BLE001 - what it is, is the question
        documented = isinstance(error, tree) and (
            isinstance(error, pyflame_rt.PyFlameRTError) or not isinstance(error, NOBODYS)
        )
        return "" if documented and str(error) else f"{type(error).__name__}: {str(error)[:80]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""
