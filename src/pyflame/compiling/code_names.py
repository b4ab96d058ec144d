"""What a function can read and write, by its code alone: global names, attribute names, and the lines they stand on.

This is the static half of the guards, as in rapid type analysis: nothing is run and nothing is hooked. `dis` tells the
instructions apart; names that are put together at run time (`getattr` and its like) make all attributes readable.
"""

from __future__ import annotations

import dis
import linecache
import re
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["REFLECTION", "CodeFacts", "facts_of", "line_of"]

# Whoever names one of these may read attributes whose names stand nowhere.
REFLECTION = frozenset(
    [
        "getattr",
        "setattr",
        "delattr",
        "vars",
        "__dict__",
        "__getattribute__",
        "eval",
        "exec",
        "globals",
        "locals",
        "asdict",
        "astuple",
        "replace",
        "copy",
        "deepcopy",
        "dumps",
        "attrgetter",
        "methodcaller",
        "itemgetter",
    ]
)

# These find globals by strings.
_BY_NAME = frozenset({"globals", "eval", "exec", "vars", "locals"})
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME")
_CLOSED = ("LOAD_DEREF", "STORE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "DELETE_DEREF")


@dataclass(slots=True)
class CodeFacts:
    """What stands in a piece of code and in all that is defined within it.

    Attributes:
        global_names: names of globals.
        closed: names of variables of enclosing functions.
        imports: Python modules that are imported.
        words: that stand in strings, where strings are evaluated.
        names: names of attributes, and strings that could be.
        lines: for each name where it stands first, and where it is written first (None where it is not).
    """

    code: CodeType
    global_names: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    lines: dict[str, tuple[int, int | None]] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def facts_of(code: CodeType, skip: frozenset[CodeType] = frozenset()) -> CodeFacts:
    """The facts of a piece of code, found once; code within it may be skipped."""
    found = CodeFacts(code)
    pending = [code]
    while pending:
        part = pending.pop()
        if part in skip:
            continue
        found.names.update(part.co_names)
        _read_constants(part.co_consts, found, pending)
        _read_instructions(part, found)
    if found.global_names & _BY_NAME:
        found.global_names |= found.words
        found.names |= found.words
    return found


def _read_constants(constants: Iterable[object], found: CodeFacts, pending: list[CodeType]) -> None:
    for constant in constants:
        if isinstance(constant, CodeType):
            pending.append(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.names.add(constant)
            found.words.add(constant)
        elif isinstance(constant, str):
            found.words.update(re.findall(r"[^\W\d]\w*", constant))
        elif isinstance(constant, tuple):
            _read_constants(constant, found, pending)


def _read_instructions(code: CodeType, found: CodeFacts) -> None:
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = _line(step) or line
        name = step.argval
        if not isinstance(name, str):
            continue
        if step.opname in _GLOBALS:
            found.global_names.add(name)
        elif step.opname == "IMPORT_NAME":
            found.imports.add(name)
        elif step.opname in _CLOSED:
            found.closed.add(name)
        elif "ATTR" not in step.opname and "METHOD" not in step.opname:
            continue
        first, written = found.lines.get(name, (line, None))
        if written is None and step.opname.startswith(("STORE", "DELETE")):
            written = line
        found.lines[name] = (first, written)


def _line(step: dis.Instruction) -> int | None:
    """The number of the line an instruction begins; None within one."""
    start = getattr(step, "line_number", step.starts_line)  # a flag since 3.13, with the number beside it
    return start if isinstance(start, int) and not isinstance(start, bool) else None


def line_of(codes: Iterable[CodeType], *names: str) -> str:
    """Where the first of the names stands that stands anywhere: the place where it is written, if there is one."""
    codes = list(codes)
    for name in names:
        found = [(code, *facts.lines[name]) for code in codes if name in (facts := facts_of(code)).lines]
        for code, first, written in sorted(found, key=lambda entry: entry[2] is None):
            number = first if written is None else written
            text = linecache.getline(code.co_filename, number).strip()
            return f"{code.co_filename}:{number}" + (f" ({text})" if text else "")
    return ""
