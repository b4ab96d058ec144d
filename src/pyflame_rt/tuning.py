"""Measure, for this machine, which kernels do a model's products and convolutions best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.options import SessionOptions
from pyflame_rt.session import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyflame_rt.graph import Graph

__all__ = ["tune_session"]


def tune_session(graph: Graph, feed: Mapping[str, Any], *, threads: int = 0, again: bool = False) -> list[Any]:
    """Run a graph once with ``SessionOptions.tune``; what was measured, each with ``case``, ``way`` and ``seconds``.

    Args:
        graph: the model.
        feed: its inputs; shapes matter, contents do not.
        threads: of a run; 0 asks the machine.
        again: measure also what was measured before.
    """
    with InferenceSession(graph, SessionOptions(tune=True, num_threads=threads)) as session:
        executable: Any = session._compile(overrides=False).executable
        executable.tune_again = again
        session.run(None, dict(feed))
        return list(executable.tuned)
