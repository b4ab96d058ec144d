"""Programs written for torch give torch's losses when only their imports are changed."""

import inspect

import numpy as np
import pytest

import pyflame as pf
from tests.programs.run import NAMES, program

pytest.importorskip("torch")
# Masks make tensors of unknown sizes, which a lazy framework has to look at; it says so.
pytestmark = pytest.mark.filterwarnings("ignore::pyflame.LazyEvaluationWarning")
TOLERANCE = 1e-5
COMPILED = [name for name in NAMES if "compiled" in inspect.signature(program(name, "torch")).parameters]


def same(found, wanted):
    assert len(wanted) >= 20
    assert np.isfinite(wanted).all()
    assert np.ptp(wanted) > 0, "nothing was trained"
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_torch(name):
    same(program(name, "pyflame")(), program(name, "torch")())


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_losses_are_those_of_torch(name):
    same(program(name, "pyflame")(pf.compile), program(name, "torch")())


def test_there_are_many():
    assert len(NAMES) >= 40
    assert len(COMPILED) >= 15
