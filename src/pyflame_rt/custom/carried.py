"""Custom operators on their way to another process, with the session that uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyflame_rt.custom.registry import CustomOpRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyflame_rt.custom.registry import PackedOp
    from pyflame_rt.graph import Graph

__all__ = ["pickled"]


def pickled(
    kind: Callable[..., Any], source: Any, options: Any, providers: Mapping[str, Any], graph: Graph
) -> tuple[Any, ...]:
    """How a session of a model is made again, with the custom operators that it needs: for ``__reduce__``."""
    packed = CustomOpRegistry.instance().packed_for(graph)
    return _restored, (kind, source, options, list(providers.items()), packed)


def _restored(kind: Callable[..., Any], source: Any, options: Any, providers: Any, used: Iterable[PackedOp]) -> Any:
    CustomOpRegistry.instance().unpack(used)
    return kind(source, options, providers)
