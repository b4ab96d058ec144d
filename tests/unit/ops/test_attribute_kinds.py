"""Attributes of a node are of the kinds that its operator declares, however quickly that is seen."""

import numpy as np
import pytest

from pyflame_rt.graph import Graph, Tensor
from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.core.signature import REQUIRED, Input, Signature

TENSOR = Tensor(np.ones(1, np.float32))
VALUES = [None, 1, True, 1.5, "a", [], [1], [True], [1.5, 1], ["a"], [1, "a"], [TENSOR], TENSOR, Graph("g"), b"a"]
FITTING = {
    "int": [1, True],
    "bool": [1, True],
    "float": [1, True, 1.5],
    "str": ["a"],
    "Tensor": [TENSOR],
    "list[int]": [[], [1], [True]],
    "list[float]": [[], [1], [True], [1.5, 1]],
    "list[str]": [[], ["a"]],
}


class Count(int):
    """An int of a class of its own."""


@pytest.mark.parametrize("kind", FITTING)
@pytest.mark.parametrize("optional", [False, True])
def test_kinds(kind, optional):
    signature = Signature((), {"a": REQUIRED}, {"a": f"{kind} | None" if optional else kind})
    fitting = FITTING[kind] + [None] * optional
    for value in VALUES:
        if any(type(value) is type(one) and repr(value) == repr(one) for one in fitting):
            signature.check_kinds({"a": value}, "node")
            continue
        with pytest.raises(InputError, match="attribute 'a' must be"):
            signature.check_kinds({"a": value}, "node")
    if kind in ("int", "list[int]"):
        signature.check_kinds({"a": Count(3) if kind == "int" else [Count(3)]}, "node")


def test_what_is_missing_unknown_or_left_out_is_named():
    signature = Signature((Input("x"), Input("y", nullable=True), Input("z")), {"a": REQUIRED, "b": 1})
    assert signature.bind({"a": 2}, "node") == {"a": 2, "b": 1}
    with pytest.raises(InputError, match="node: attribute 'a' is required"):
        signature.bind({"b": 2}, "node")
    with pytest.raises(InputError, match="node: unknown attribute 'c'"):
        signature.bind({"a": 2, "c": 2}, "node")
    for _ in range(2):  # the first time, counts are not known yet
        signature.check_given(["x", "y", "z"], "node")
        signature.check_given(["x", "", "z"], "node")
        with pytest.raises(InputError, match="node: input 'x' is required"):
            signature.check_given(["", "y", "z"], "node")
        with pytest.raises(InputError, match="node: takes 3 to 3 inputs, got 4"):
            signature.check_given(["x", "y", "z", "more"], "node")
