"""Bounds that the table of tolerances has are not written out again where the table is used."""

import re
from pathlib import Path

from tests.tolerances import TABLE

TESTS = Path(__file__).resolve().parents[1]
PAIR = re.compile(r"\brtol=([0-9.e-]+), atol=([0-9.e-]+)(?=[,)])|\batol=([0-9.e-]+), rtol=([0-9.e-]+)(?=[,)])")


def test_backends_take_their_tolerances_from_the_table():
    found = []
    for path in sorted((TESTS / "unit/backends").rglob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for left, right, absolute, relative in PAIR.findall(line):
                pair = float(left or relative), float(right or absolute)
                if pair in TABLE.values() and not line.lstrip().startswith("def "):
                    found.append(f"{path.name}:{number}")
    assert not found, f"tests/tolerances.py has these bounds: {found}"
