"""Tokens that generation is given, checked: those of prompts and of ends, and the tables that these must fit."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import InputError
from pyflame_rt.ops.onnx.cast import Cast
from pyflame_rt.ops.onnx.index import Gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.graph import Graph

__all__ = ["prompt_tokens", "rows_looked_up", "token_set"]


def token_set(given: Any) -> frozenset[int]:
    """Tokens, of which one, several or None are given.

    Raises:
        InputError: They are no whole numbers.

    Example:
        >>> sorted(token_set([2, 1])), token_set(3), token_set(None)
        ([1, 2], frozenset({3}), frozenset())
    """
    if given is None:
        return frozenset()
    try:
        several = [given] if isinstance(given, Integral) else list(given)
    except TypeError:
        several = [given]
    if not all(isinstance(token, Integral) for token in several):
        raise InputError(f"eos_token_id must be a token, tokens or None, got {given!r}")
    return frozenset(int(token) for token in several)


def prompt_tokens(prompt: Sequence[int], words: int | None = None, context: int | None = None) -> tuple[int, ...]:
    """A prompt, of tokens that a model knows and not longer than it reads.

    Args:
        prompt: whole numbers.
        words: so many tokens are known, where that is told.
        context: so many tokens can be read, where there is a bound.

    Raises:
        InputError: It is another thing, empty, or too long, or holds what is no token of the model.

    Example:
        >>> prompt_tokens([1, 2, 3], context=3)
        (1, 2, 3)
        >>> prompt_tokens([1, -1])
        Traceback (most recent call last):
        ...
        pyflame_rt.graph.errors.InputError: a prompt holds -1, which is no token: they count from 0
    """
    try:
        tokens = list(prompt)
    except TypeError:
        raise InputError(f"a prompt is a list of tokens, got {type(prompt).__name__}") from None
    if not tokens:
        raise InputError("a prompt needs at least one token")
    strange = next((t for t in tokens if not isinstance(t, Integral)), None)
    if strange is not None:
        raise InputError(f"a prompt is a list of tokens, which are whole numbers: it holds {strange!r}")
    wrong = next((t for t in tokens if t < 0 or t >= (words or 1 << 63)), None)
    if wrong is not None:
        bound = f" to {words - 1}" if words else ""
        raise InputError(f"a prompt holds {wrong}, which is no token: they count from 0{bound}")
    if context is not None and len(tokens) > context:
        raise InputError(f"a prompt of {len(tokens)} tokens is longer than the {context} that the model reads")
    return tuple(int(token) for token in tokens)


def rows_looked_up(graph: Graph, name: str) -> int | None:
    """Rows of the smallest table that an input is looked up in; None where there is none.

    Example:
        >>> import numpy as np
        >>> from pyflame_rt import DType, Graph
        >>> graph = Graph("table")
        >>> _ = graph.add_input("ids", ["n"], DType.Int64)
        >>> _ = graph.add_initializer("words", np.zeros((7, 2), np.float32))
        >>> _ = graph.add_node("look", "Gather", ["words", "ids"], ["y"])
        >>> _ = graph.add_output("y", ["n", 2])
        >>> rows_looked_up(graph, "ids"), rows_looked_up(graph, "other")
        (7, None)
    """
    same, rows = {name}, []
    for node in graph.topological_sort():
        if node.full_name == Cast.name and node.inputs[0] in same:
            same.update(node.outputs)
        elif node.full_name == Gather.name and node.inputs[1] in same and not node.attributes.get("axis", 0):
            table = graph.initializers.get(node.inputs[0])
            if table is not None and isinstance(size := table.shape[0], int):
                rows.append(size)
    return min(rows, default=None)
