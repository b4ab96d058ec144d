"""How a primitive was made, so that an equal one can be made in another process."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

from pyflame_rt.backends.cpu.run.gomp import load_gomp

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyflame_rt.backends.cpu.onednn.primitive import Primitive

__all__ = ["Recipe", "make_again", "recorded"]

P = ParamSpec("P")
_makers: dict[str, Callable[..., Primitive]] = {}


class Recipe(NamedTuple):
    """A function of :mod:`.primitives`, what it was given, and for how many threads."""

    maker: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    threads: int


def recorded(make: Callable[P, Primitive]) -> Callable[P, Primitive]:
    """Let primitives know how they were made."""
    _makers[make.__name__] = make

    @functools.wraps(make)
    def record(*args: P.args, **options: P.kwargs) -> Primitive:
        primitive = make(*args, **options)
        primitive.recipe = Recipe(make.__name__, args, dict(options), _threads())
        return primitive

    return record


def make_again(recipe: Recipe) -> Primitive:
    """An equal primitive; as many threads as then must be set."""
    primitive = _makers[recipe.maker](*recipe.args, **recipe.options)
    primitive.recipe = recipe
    return primitive


def _threads() -> int:
    library = load_gomp()
    return 1 if library is None else int(library.omp_get_max_threads())
