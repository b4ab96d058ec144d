"""How many threads tensors are computed with."""

import pytest

import pyflame as pf
from pyflame import evaluation, threads


@pytest.fixture
def unsaid(monkeypatch):
    monkeypatch.setattr(threads, "_said", [0])
    yield
    evaluation.clear_cache()


def planned():
    """The executables there are."""
    return list(evaluation._plans.values())


@pytest.mark.usefixtures("unsaid")
def test_threads_are_those_that_were_asked_for(monkeypatch):
    for text, expected in (("3", 3), ("2,4", 2), ("", 0), ("many", 0)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert threads.wanted() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert pf.get_num_threads() == 1
    pf.set_num_threads(2)
    assert pf.get_num_threads() == 2
    x = pf.ones([256, 256])
    (x @ x).eval()
    assert planned()[-1].executable.threads == 2
    pf.set_num_threads(1)
    (x @ x).eval()
    assert planned()[-1].executable.threads == 1


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_other_numbers_of_threads_are_refused(given, error):
    with pytest.raises(error, match="set_num_threads takes a number"):
        pf.set_num_threads(given)
