"""A sample of the absurd models; ``make hostile`` runs all of them."""

import pytest

from tests.fuzz.absurd import absurd_cases, all_cases, sweep
from tests.fuzz.structures import structures


def findings(numbers):
    return [f"{name}: {outcome} {finding}" for name, outcome, finding in sweep(numbers) if finding]


def test_there_are_enough_of_them():
    assert len(absurd_cases()) >= 2300
    assert len(structures()) >= 100
    assert len({case[0] for case in all_cases()}) == len(all_cases())


def test_a_sample_of_absurd_attributes():
    assert findings(list(range(0, len(absurd_cases()), 37))) == []


def test_a_sample_of_structures():
    first = len(absurd_cases())
    assert findings(list(range(first, len(all_cases()), 5))) == []


@pytest.mark.slow
def test_all_of_them():
    assert findings(list(range(len(all_cases())))) == []
