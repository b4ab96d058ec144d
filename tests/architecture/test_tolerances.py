"""Bounds that the table of tolerances has are not written out again where the table is used."""

import re
from pathlib import Path

from tests.tolerances import TABLE

TESTS = Path(__file__).resolve().parents[1]
PAIR = re.compile(r"\brtol=([0-9.e-]+), atol=([0-9.e-]+)(?=[,)])|\batol=([0-9.e-]+), rtol=([0-9.e-]+)(?=[,)])")


FOLDERS = ("backends", "ops", "opt", "partition", "session", "training")


def test_bounds_of_the_table_are_taken_from_it():
    found = []
    for path in sorted(path for folder in FOLDERS for path in (TESTS / "unit" / folder).rglob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for left, right, absolute, relative in PAIR.findall(line):
                pair = float(left or relative), float(right or absolute)
                if pair in TABLE.values() and not line.lstrip().startswith("def "):
                    found.append(f"{path.name}:{number}")
    assert not found, f"tests/tolerances.py has these bounds: {found}"
