"""How often operators are named by strings outside their definition: what is known of one stands beside it.

A pair is an operator's name and a file of `pyflame_rt` or `pyflame` in which it stands as a string, once or often.
What counts: a whole string literal, bare (``"Conv"``) or with its domain (``"pyflame::FMA"``), and each word of a
literal that lists several (``"Add Sub"``). What does not: the file that defines the operator; docstrings, annotations,
parts of f-strings and ``__all__``; names of Python such as ``Conv.name``, which the type checker knows; and the files
below, whose strings are other names that happen to be spelled so.

    python tests/architecture/test_operator_names.py    # prints the ranking of files
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pyflame_rt.ops.core.registry import all_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(__file__).parents[2] / "src"
MOST = 250

# Strings of these files name classes or types of Python, not operators.
OTHER_NAMES = {
    "pyflame/nn/__init__.py": "layers, loaded when asked for",
    "pyflame/optim/__init__.py": "optimizers, loaded when asked for",
}


def definitions() -> dict[str, set[Path]]:
    """Files that define each name, which may be an operator of several domains."""
    found: dict[str, set[Path]] = defaultdict(set)
    for op in all_ops():
        path = Path(inspect.getsourcefile(inspect.unwrap(op.body)) or "").resolve()
        found[op.name].add(path)
        found[op.full_name].add(path)
    return found


def literals(tree: ast.AST) -> Iterator[str]:
    """Strings of a module that say something to the program."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.JoinedStr, ast.arg)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from literals(ast.Expression(node.value))
        elif not isinstance(node, ast.AnnAssign):
            yield from literals(node)


def pairs() -> dict[str, list[str]]:
    """Operators that each file names by a string."""
    known, found = definitions(), {}
    for path in sorted(p for package in ("pyflame_rt", "pyflame") for p in (SOURCES / package).rglob("*.py")):
        place = path.relative_to(SOURCES).as_posix()
        if place in OTHER_NAMES:
            continue
        named: set[str] = set()
        for text in literals(ast.parse(path.read_text(encoding="utf-8"))):
            words = text.split()
            if words and all(word in known for word in words):
                named.update(word for word in words if path.resolve() not in known[word])
        if named:
            found[place] = sorted(named)
    return found


def test_rules_of_an_operator_stand_beside_it() -> None:
    """No new table of names."""
    found = pairs()
    count = sum(map(len, found.values()))
    largest = sorted(found, key=lambda place: -len(found[place]))[:5]
    assert count <= MOST, f"{count} names of operators as strings, most in {largest}"


if __name__ == "__main__":
    ranking = sorted(pairs().items(), key=lambda item: (-len(item[1]), item[0]))
    for place, names in ranking:
        sys.stdout.write(f"{len(names):5} {place}: {' '.join(names)}\n")
    sys.stdout.write(f"{sum(len(names) for _, names in ranking):5} in all\n")
