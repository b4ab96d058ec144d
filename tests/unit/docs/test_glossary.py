"""The words of CONTRIBUTING.md, and the places they name."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def rows():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Words")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def test_twenty_words_and_where_they_live():
    found = rows()
    assert len(found) == 20
    assert [word for word, *_ in found] == sorted(word for word, *_ in found)
    for word, _, places in found:
        for place in re.findall(r"`([^`]+)`", places):
            at = [ROOT / "src" / place, ROOT / "src/pyflame_rt" / place]
            assert any(path.exists() for path in at), (word, place)
