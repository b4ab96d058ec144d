"""The guard of a plan: a step that looks at numbers which only running makes known."""

from __future__ import annotations

from typing import Any

from pyflame_rt.ops.core.guards import check_contents
from pyflame_rt.ops.core.registry import primitive
from pyflame_rt.ops.core.type_rules import same

__all__ = ["Look"]


@primitive(since=1, domain="pyflame", name="Within", infer=same)
def Look(
    ops: Any,
    x: Any,
    /,
    *,
    low: int | None = None,
    high: int | None = None,
    without: int | None = None,
    what: str = "a number",
) -> Any:
    """The value itself, whose numbers must lie between two limits, both included, and not be ``without``."""
    check_contents(what, ops.to_numpy(x), low, high, without)
    return x
