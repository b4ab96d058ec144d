"""State pairs: which output of a step is which input of the next, found by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.graph import Dim, TensorType
from pyflame_rt.graph.arguments import expect
from pyflame_rt.graph.errors import InputError

if TYPE_CHECKING:
    from pyflame_rt.graph import Graph, TensorInfo

__all__ = ["blank_state", "state_pairs"]

# What an output is called when the next step reads it under another name: the first that is an input, and fits, counts.
_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"present_key_values(.*)", (r"past_key_values\1",)),
    (r"present(.*)", (r"past_key_values\1", r"past\1")),
    (r"(.*)_?out(\d*)", (r"\1_in\2", r"\1in\2", r"\1\2")),
    (r"(.*)_?out_(.*)", (r"\1_in_\2",)),
    (r"out_(.*)", (r"in_\1", r"\1")),
    (r"(?:new|next|final|updated)_(.*)", (r"\1", r"initial_\1", r"prev_\1")),
    (r"(.*)_(?:new|next|final|n)", (r"\1", r"\1_0", r"\1_prev", r"initial_\1")),
    (r"Y_([hc])", (r"initial_\1", r"\1_0", r"\1")),
    (r"(.*[^_])[nN]", (r"\1", r"\g<1>0")),
)


def state_pairs(graph: Graph, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Inputs by the outputs that feed them in the next step.

    Args:
        graph: the model.
        given: pairs to use in place of those found: input by output, or output by input.

    Raises:
        InputError: A given name is not there.

    Example:
        >>> from pyflame_rt.graph import Graph
        >>> g = Graph("g")
        >>> _ = g.add_input("x", [1]), g.add_input("state", [2]), g.add_output("y", [1]), g.add_output("stateN", [2])
        >>> state_pairs(g)
        {'stateN': 'state'}
    """
    inputs = {info.name: info for info in graph.inputs}
    outputs = {info.name: info for info in graph.outputs}
    if given is not None:
        expect(given, Mapping, "state_map")
        return dict(_given(pair, inputs, outputs) for pair in given.items())
    pairs: dict[str, str] = {}
    for name, info in outputs.items():
        for candidate in _candidates(name):
            if candidate in inputs and candidate not in pairs.values() and _fits(info, inputs[candidate]):
                pairs[name] = candidate
                break
    return pairs


def _given(pair: tuple[str, str], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[str, str]:
    for source, target in (pair, pair[::-1]):
        if source in outputs and target in inputs:
            return source, target
    raise InputError(
        f"state_map pairs {pair[0]!r} with {pair[1]!r}, which are no output and input of the model. "
        f"Outputs: {', '.join(outputs)}; inputs: {', '.join(inputs)}"
    )


def _candidates(name: str) -> list[str]:
    found: list[str] = []
    for pattern, targets in _RULES:
        match = re.fullmatch(pattern, name)
        if match is not None:
            found += [match.expand(target) for target in targets]
    return [candidate for candidate in found if candidate != name]


def _fits(output: TensorInfo, entry: TensorInfo) -> bool:
    made, read = output.type, entry.type
    if not isinstance(made, TensorType) or not isinstance(read, TensorType) or made.dtype != read.dtype:
        return False
    if made.shape is None or read.shape is None:
        return True
    if len(made.shape) != len(read.shape):
        return False
    sizes = zip(made.shape, read.shape, strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def blank_state(entry: TensorInfo, sizes: Mapping[str, int], batch: int, *, growing: bool) -> np.ndarray[Any, Any]:
    """Zeros for a state that was not given.

    Args:
        entry: the input.
        sizes: what is known of symbolic sizes.
        batch: rows of the token, which a size without a name is taken for; of several, the first.
        growing: the state grows from step to step, as that of attention does: unknown sizes are 0.

    Raises:
        InputError: A size is not known.
    """
    kind = entry.type
    shape = kind.shape if isinstance(kind, TensorType) else None
    if not isinstance(kind, TensorType) or shape is None:
        raise InputError(f"state {entry.name!r} has no declared shape: give its first value to start()")
    known: list[int] = []
    for dim in shape:
        unnamed = dim is None and None not in shape[: len(known)]
        size = batch if unnamed else dim.evaluate(sizes) if isinstance(dim, Dim) else dim
        if size is None and not growing:
            raise InputError(f"state {entry.name!r} is {kind}, whose size {dim} is not known: give it to start()")
        known.append(0 if size is None else size)
    return np.zeros(known, kind.dtype.numpy)
