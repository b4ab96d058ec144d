"""The state of what decides the order of a loader's batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["begin_order", "order_state", "restore_order"]


def _parts(loader: Any) -> Iterator[Any]:
    """The loader and its samplers, each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    yield from {id(part): part for part in parts if part is not None}.values()


def _generators(loader: Any) -> list[np.random.Generator]:
    found = (getattr(part, "generator", None) for part in _parts(loader))
    return list({id(found): found for found in found if isinstance(found, np.random.Generator)}.values())


def begin_order(loader: Any, epoch: int) -> None:
    """Tell samplers that draw by epoch (`set_epoch`) which one begins."""
    for part in _parts(loader):
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)


def order_state(loader: Any) -> list[dict[str, Any]]:
    """The states of the generators that a loader has of its own."""
    return [dict(generator.bit_generator.state) for generator in _generators(loader)]


def restore_order(loader: Any, states: list[dict[str, Any]]) -> None:
    """Let the loader's generators go on from states."""
    generators = _generators(loader)
    if states and len(states) != len(generators):
        raise ValueError(f"The checkpoint's loader had {len(states)} generators, this one has {len(generators)}")
    for generator, state in zip(generators, states, strict=False):
        generator.bit_generator.state = state
