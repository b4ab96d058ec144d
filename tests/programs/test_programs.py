"""Programs written for torch give torch's losses when only their imports are changed."""

import inspect

import numpy as np
import pytest

import pyflame as pf
from tests.programs import same as begin
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


# Nothing of these is traced: they call methods of their modules only, fill them without taking the result, or (hooks
# on gradients, sequences packed by their lengths) are refused and run as they are.
UNTRACED = {
    "beam_search", "ctc_speech", "diffusion", "freezing", "hooks", "init_views", "lstm_classifier", "manual_sgd",
    "metric_learning", "moco_queue", "resnet", "sac", "spectral_norm", "tbptt", "weight_norm",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:compiled .* runs as it is:RuntimeWarning")
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(COMPILED)))
def test_compiled_modules_give_the_losses_of_torch(name):
    """Programs that compile no step have their modules compiled, and are differentiated outside."""
    main, made = program(name, "pyflame"), []

    def fill(torch, module, *settings):
        made.append(torch.compile(begin.fill(torch, module, *settings)))
        return made[-1]

    main.__globals__["fill"] = fill
    same(main(), program(name, "torch")())
    assert any(module.trace_count for module in made) != (name in UNTRACED)


def test_there_are_many():
    assert len(NAMES) >= 40
    assert len(NAMES) - len(UNTRACED) >= 40
