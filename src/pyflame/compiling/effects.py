"""What a function writes besides tensors: places are compared before and after its trace, and replays write again."""

from __future__ import annotations

import random
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame.compiling.code_names import line_of
from pyflame.compiling.places import MISSING, FunctionParts
from pyflame.compiling.reach import is_plain
from pyflame.compiling.tracer import TraceError
from pyflame.compiling.trees import flatten, unflatten
from pyflame.ops.core import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyflame.compiling.places import Place
    from pyflame.compiling.reach import Reach

__all__ = ["Effects", "Write"]


class _Change:
    """What leads from one state of a place to another.

    Attributes:
        entries: those to write, `MISSING` for those to take away.
        moved: keys of entries that are there, but further back than before: of a dict whose order changed.
    """

    def __init__(self, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        kept, order = [k for k in old if k in new], [k for k in new if k in old]
        first = next((b for a, b in zip(kept, order, strict=True) if a is not b), MISSING)
        behind = list(dropwhile(lambda k: k is not first, new))
        self.moved = [k for k in behind if k in old]
        rest = set(behind)
        self.entries = {k: v for k, v in new.items() if k in rest or v is not old.get(k, MISSING)}
        self.entries |= {k: MISSING for k in old if k not in new}


class Write:
    """Entries that a call writes into one place.

    Attributes:
        place: where.
        keys: of the entries that change.
        moved: keys of entries of a dict that come behind the others, in their order.
        structure: of their values; tensors are results of the trace.
    """

    def __init__(self, place: Place, change: _Change, tensors: list[Any], known: dict[int, Any]) -> None:
        self.place = place
        self.keys = list(change.entries)
        self.moved = change.moved
        self.structure = flatten(list(change.entries.values()), tensors, known)

    def apply(self, tensors: Iterator[Any]) -> None:
        """Write them."""
        self.place.put(dict.fromkeys(self.moved, MISSING))
        self.place.put(dict(zip(self.keys, unflatten(self.structure, tensors), strict=True)))


class Effects:
    """The state a function can reach, as it was before its trace.

    Args:
        reach: the places.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._before = [(place, place.contents()) for place in reach.places]
        self._arrays = [(path, array, array.copy()) for path, array in reach.arrays]
        self._random = [(path, source, _state(source)) for path, source in reach.generators]
        self._random += [(name, source, _state(source)) for name, source in _HIDDEN.items()]

    def _changes(self) -> Iterator[tuple[Place, dict[Any, Any], dict[Any, Any]]]:
        """Places with what is there, and with what was."""
        for place, before in self._before:
            yield place, place.contents(), before

    def written(self, tensors: list[Any]) -> list[Write]:
        """What the function wrote; its tensors go to the list.

        Raises:
            TraceError: it wrote something that a replay could not write again.
        """
        self._refuse_arrays()
        self._refuse_random()
        found = []
        for place, now, before in self._changes():
            change = _Change(before, now)
            for key, value in change.entries.items():
                self._check(place, key, value)
            if change.entries:
                found.append(Write(place, change, tensors, self._reach.seen))
        return found

    def _check(self, place: Place, key: Any, value: Any) -> None:
        """Refuse what was made by the trace and could not be made again by a replay."""
        strange = None if self._again(value) else f"a {type(value).__name__} that it makes"
        if isinstance(place, FunctionParts):
            strange = "another definition"
        if strange is None:
            return
        name = str(key) if isinstance(key, str) else place.path.rpartition(".")[2]
        where = line_of(self._reach.codes, name, place.path.rpartition(".")[2], place.path.partition(".")[0])
        raise TraceError(
            f"a compiled function gives {place.label(key)} {strange}{_at(where)}, which its later calls would not make "
            "again; return it instead, or do this outside"
        )

    def _again(self, value: Any) -> bool:
        """Whether a replay can make a value again."""
        if value is MISSING or isinstance(value, Handle) or is_plain(value) or id(value) in self._reach.seen:
            return True
        inner: list[Any] = []
        kind = type(value)
        if kind in (list, tuple) or hasattr(value, "_fields"):
            inner = list(value)
        elif kind is dict:
            inner = list(value.values())
        else:
            return False
        return all(map(self._again, inner))

    def _refuse_arrays(self) -> None:
        for path, array, then in self._arrays:
            if array.shape != then.shape or array.tobytes() != then.tobytes():
                where = line_of(self._reach.codes, path.rpartition(".")[2])
                raise TraceError(
                    f"a compiled function writes into the NumPy array {path}{_at(where)}, which its later calls would "
                    "not do; use a tensor"
                )

    def _refuse_random(self) -> None:
        for path, source, then in self._random:
            if not _same_state(_state(source), then):
                where = line_of(self._reach.codes, path.rpartition(".")[2], *_DRAWS)
                raise TraceError(
                    f"a compiled function draws random numbers from {path}{_at(where)}, which later calls would not "
                    "draw again; use pf.rand and its like, or pass numbers as arguments"
                )

    def refuse_closed(self) -> None:
        """Refuse what no trace can look into or put back, such as an iterator that was advanced.

        Raises:
            TraceError: there is one.
        """
        for kind, path in self._reach.closed:
            where = line_of(self._reach.codes, path.rpartition(".")[2])
            raise TraceError(
                f"a compiled function uses the {kind} {path}{_at(where)}, which nobody can look into; take what it "
                "gives outside, and pass that as an argument"
            )

    def put_back(self) -> None:
        """Let everything be as it was before the trace."""
        for place, now, before in list(self._changes()):
            change = _Change(now, before)
            if change.entries:
                place.put(dict.fromkeys(change.moved, MISSING))
                place.put(change.entries)
        for _, array, then in self._arrays:
            if array.shape == then.shape and array.flags.writeable:
                array[...] = then
        for _, source, then in self._random:
            _set_state(source, then)


# Those that are drawn from without being named.
_HIDDEN: dict[str, Any] = {"random": random, "numpy.random": np.random}
_DRAWS = ("random", "default_rng", "randint", "uniform", "normal", "shuffle", "choice")


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _state(source: Any) -> Any:
    if source is random or isinstance(source, random.Random):
        return source.getstate() if not isinstance(source, random.SystemRandom) else None
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    return source.state if isinstance(source, np.random.BitGenerator) else source.get_state()


def _set_state(source: Any, state: Any) -> None:
    if _same_state(_state(source), state):
        return
    if source is random or isinstance(source, random.Random):
        source.setstate(state)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    elif isinstance(source, np.random.BitGenerator):
        source.state = state
    else:
        source.set_state(state)


def _same_state(a: Any, b: Any) -> bool:
    """Whether two states of a generator are equal; they are nested tuples, dicts and arrays."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_state(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_same_state(x, y) for x, y in zip(a, b, strict=True))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
