"""Cases of the ONNX suite through import and export; ONNX Runtime judges."""

import warnings
from random import Random

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.unit.exporters.roundtrip import cases, check_case

    NAMES = sorted(cases())
# Small cases of every kind; the rest is `-m slow`, or the script.
SAMPLE = sorted(Random(0).sample(NAMES, 150))


def check(names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [check_case(name) for name in names]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_runs_the_same_after_export(name):
    check([name])


@pytest.mark.slow
def test_every_case_runs_the_same_after_export():
    outcomes = check(NAMES)
    assert outcomes.count("refused by name") <= 1
    assert sum("equal" in outcome for outcome in outcomes) > 1500
