"""Where the code of a TorchScript archive was written: torch keeps, beside the code, the lines it was scripted from."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pyflame_rt.graph.errors import PyFlameRTError
from pyflame_rt.importers.torch_pickle import MAX_PICKLE, Refused

if TYPE_CHECKING:
    from pyflame_rt.importers.torch_pickle import PickleMachine, TensorArchive

__all__ = ["origins_of"]


def origins_of(machine: PickleMachine, archive: TensorArchive, name: str, code: str) -> dict[str, str]:
    """``file.py:12`` by line of the code; empty where the archive does not tell, for errors do without it.

    Args:
        machine: that reads the archive's pickles.
        archive: that holds the code.
        name: of the member with the code.
        code: its text.
    """
    if f"{name}.debug_pkl" not in archive.members:
        return {}
    try:
        found = machine.run(archive.member(f"{name}.debug_pkl".removeprefix(archive.root), MAX_PICKLE))
        return _lines(found, code)
    except (Refused, PyFlameRTError, ValueError, TypeError, LookupError, AttributeError):
        return {}


def _lines(found: Any, code: str) -> dict[str, str]:
    mark, texts, ranges = found
    if mark != "FORMAT_WITH_STRING_TABLE":
        return {}
    starts = [0, *accumulate(len(line.encode()) for line in code.splitlines(keepends=True))]
    lines: dict[str, str] = {}
    for offset, (source, start, _), *_ in ranges:
        pieces, file, first = source
        path = PurePath(texts[file]).name
        if not path.endswith(".py"):
            continue
        before = "".join(texts[i] for i in pieces)[:start]
        lines.setdefault(str(bisect_right(starts, offset)), f"{path}:{first + before.count(chr(10))}")
    return lines
