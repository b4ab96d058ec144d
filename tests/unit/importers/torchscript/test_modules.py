"""Every module type of torch, traced and scripted, gives torch's numbers."""

import pytest

from tests.unit.importers.torchscript.modules import MODULES
from tests.unit.importers.torchscript.saving import check, save_scripted, save_traced, torch

# torch says so once in a process, to whichever test comes first.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

# What torch itself cannot script.
NOT_SCRIPTED = {"Transformer", "TransformerEncoder"}


def _made(name):
    torch.manual_seed(7)
    model, inputs = MODULES[name]()
    return model.eval(), inputs


def test_there_are_sixty_module_types():
    assert len({type(make()[0]) for make in MODULES.values()}) >= 60


@pytest.mark.parametrize("name", MODULES)
def test_traced(name, tmp_path):
    model, inputs = _made(name)
    path = tmp_path / "model.pt"
    save_traced(model, tuple(v.clone() for v in inputs), path)
    session = check(path, model, inputs)
    assert all(info.name.endswith(".1") for info in session.get_inputs())


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_SCRIPTED])
def test_scripted(name, tmp_path):
    model, inputs = _made(name)
    path = tmp_path / "model.pt"
    save_scripted(model, path)
    check(path, model, inputs)
