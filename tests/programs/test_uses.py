"""Names of torch that public training scripts use are here, or their absence says what to write."""

import pytest

from pyflame.suggestions import INSTEAD
from tests.programs import uses

pytest.importorskip("torch")


def test_names_resolve():
    counts = uses.total()
    missing = {name: count for name, count in counts.items() if uses.answer(name)}
    assert sum(missing.values()) <= 0.05 * counts.total(), missing


def test_what_is_missing_says_what_to_do_instead():
    missing = [name for name in uses.total() if uses.answer(name)]
    advice = {text for names in INSTEAD.values() for text in names.values()}
    silent = [name for name in missing if not any(text in uses.answer(name) for text in advice)]
    assert not silent, {name: uses.answer(name) for name in silent}


def test_fifty_scripts_are_fixed():
    import json

    scripts = json.loads(uses.TABLE.read_text("utf-8"))
    assert len(scripts) == 50
    assert len({(s["repository"], s["path"]) for s in scripts}) == 50
    assert all(len(s["commit"]) == 40 for s in scripts)
