"""Recomputation (activation checkpointing) with torch's signatures."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyflame.autograd.api import checkpoint as _recomputed
from pyflame.nn.containers import Sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function so that what it computes on the way is computed again for its gradients.

    Args:
        function: returns a tensor, or a tuple or list of them.
        args: of the function.
        use_reentrant: torch's two ways of doing it; here there is one, which nests and takes keywords.
        preserve_rng_state: random numbers are the same both times; a False is refused.
        kwargs: of the function.

    Example:
        >>> import pyflame as pf
        >>> x = pf.tensor([2.0], requires_grad=True)
        >>> pf.utils.checkpoint.checkpoint(lambda v: v * v * v, x, use_reentrant=False).backward()
        >>> x.grad.item()
        12.0
    """
    del use_reentrant
    if not preserve_rng_state:
        raise ValueError("preserve_rng_state=False: a random tensor has its pattern from when it is made, both times")
    return _recomputed(function, *args, **kwargs)


def checkpoint_sequential(
    functions: Sequence[Callable[..., Any]] | Sequential,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
) -> Any:
    """Call functions one after the other, in so many groups that are each computed again for their gradients.

    Example:
        >>> import pyflame as pf
        >>> net = pf.nn.Sequential(pf.nn.Linear(3, 4), pf.nn.Tanh(), pf.nn.Linear(4, 1))
        >>> pf.utils.checkpoint.checkpoint_sequential(net, 2, pf.ones([5, 3])).shape
        [5, 1]
    """
    listed = list(functions.children()) if isinstance(functions, Sequential) else list(functions)
    if not 1 <= segments <= len(listed):
        raise ValueError(f"{len(listed)} functions do not make {segments} groups")
    ends = [len(listed) * i // segments for i in range(segments + 1)]

    def run(group: list[Callable[..., Any]]) -> Callable[[Any], Any]:
        def through(value: Any) -> Any:
            for function in group:
                value = function(value)
            return value

        return through

    for start, stop in pairwise(ends):
        group = run(listed[start:stop])
        input = checkpoint(group, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
    return input
