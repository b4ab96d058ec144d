"""Arguments of another kind are named by the function's annotations, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence  # noqa: TC003 - looked at while it runs
from typing import Literal

import numpy as np
import pytest

from pyflame_rt.graph import Graph
from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.named_arguments import NamedArguments, expects_arguments, names_arguments


def fails(kind: type[Exception]) -> Callable[..., None]:
    """An error of Python's, as a function that looks into wrong arguments raises it."""
    {
        TypeError: lambda: 1 + "a",
        ValueError: lambda: int("a"),
        KeyError: lambda: {}["a"],
        AttributeError: lambda: (1).nothing,
    }[kind]()


@names_arguments
def everything(
    n: int = 1,
    x: float = 1.0,
    text: str = "",
    flag: bool = False,
    sizes: Sequence[int] | int = (),
    pair: tuple[float, float] = (0.0, 1.0),
    table: Mapping[str, int] | None = None,
    call: Callable[[], int] | None = None,
    way: Literal["mean", "sum"] = "mean",
    graph: Graph | None = None,
    names: Iterable[str] = (),
    kind: type[Exception] = TypeError,
):
    fails(kind)


WRONG = {
    "n": [
        ("two", "a whole number, got 'two'"),
        (1.5, "a whole number, got 1.5"),
        (10**30, "a whole number"),
        (None, "a whole number, got None"),
    ],
    "x": [("much", "a number, got 'much'"), (2j, "a number"), (np.ones(3), "a number, got ndarray of shape [3]")],
    "text": [(5, "a text, got 5"), ("a\0b", "a text"), ("\ud800", "a text")],
    "flag": [("no", "True or False, got 'no'"), (7, "True or False, got 7")],
    "sizes": [([1, "a"], "a sequence in which each is a whole number"), ("ab", "a sequence or a whole number")],
    "pair": [((1,), "a tuple of 2, got tuple"), ((1, "b"), "a tuple in which each is a number"), (1, "a tuple")],
    "table": [([1], "a dict or None, got list")],
    "call": [(5, "callable or None, got 5")],
    "way": [("most", "one of ['mean', 'sum'], got 'most'")],
    "graph": [("g.onnx", "a Graph or None, got 'g.onnx'"), (Graph, "a Graph or None, got type")],
    "names": [("abc", "a list, got 'abc'"), ([1], "a list in which each is a text")],
}


@pytest.mark.parametrize(("name", "given", "said"), [(name, *row) for name, rows in WRONG.items() for row in rows])
@pytest.mark.parametrize("kind", [TypeError, ValueError, KeyError, AttributeError])
def test_the_argument_is_named(name, given, said, kind):
    with pytest.raises(TypeError) as caught:
        everything(**{name: given}, kind=kind)
    assert str(caught.value).startswith(f"everything: {name} must be {said}")


RIGHT = {
    "n": [True, np.int8(3), np.array(3), np.array([3])],
    "x": [3, np.float16(2), np.array(1.5)],
    "sizes": [3, [1, np.int64(2)], (), np.ones(2, int)],
    "pair": [(1, 2.5), [0.0, 1.0]],
    "table": [None, {}, {"a": 1}],
    "call": [None, len],
    "way": ["sum"],
    "graph": [Graph("g"), None],
    "names": [["a"], {"a": 1}.keys(), (n for n in "ab")],
}


@pytest.mark.parametrize(("name", "given"), [(name, value) for name, values in RIGHT.items() for value in values])
def test_errors_of_other_causes_stay(name, given):
    with pytest.raises(ValueError, match="invalid literal"):
        everything(**{name: given}, kind=ValueError)


def test_numbers_that_are_none():
    with pytest.raises(InputError, match="everything: x must be a finite number, got nan"):
        everything(x=float("nan"))


def test_what_works_and_what_is_said_on_purpose_passes():
    @names_arguments
    def told(n: int) -> str:
        if n == "stop":
            raise ValueError("n is a word")
        return f"{n}!"

    assert told("three") == "three!"
    with pytest.raises(TypeError, match=r"told\(\) missing 1 required positional argument"):
        told()
    with pytest.raises(InputError, match="mine"):
        names_arguments(refused)("x")


def refused(n: int) -> None:
    raise InputError("mine")


def test_errors_of_callbacks_are_the_callers(tmp_path):
    """Code of the user's fails in it: the arguments are not to blame."""
    scope = {}
    exec(compile("def broken(): return {}['mine']", str(tmp_path / "users.py"), "exec"), scope)  # noqa: S102

    @names_arguments
    def runs(call: Callable[[], int], n: int) -> int:
        return call()

    with pytest.raises(KeyError, match="mine"):
        runs(scope["broken"], "n")


def test_constructors_of_subclasses():
    from pyflame import nn

    assert issubclass(nn.Module, NamedArguments)
    with pytest.raises(TypeError, match="Linear: in_features must be a whole number, got 'three'"):
        nn.Linear("three", 2)

    class Mine(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.n = n + 1

    with pytest.raises(TypeError, match="can only concatenate"):
        Mine("a")


def test_what_is_kept_for_later_is_looked_at_first():
    @expects_arguments
    def keep(n: int, *, path: str = "") -> tuple[int, str]:
        return n, path

    assert keep(np.int32(3), path="x") == (3, "x")
    with pytest.raises(TypeError, match="keep: path must be a text, got None"):
        keep(3, path=None)
