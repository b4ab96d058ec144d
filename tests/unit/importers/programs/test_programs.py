"""Whole programs, traced, scripted, exported and live, give torch's numbers."""

import pytest

import pyflame_rt
from tests.unit.importers.programs import images, sequences
from tests.unit.importers.torchscript.saving import close, jit, leaves, save_scripted, save_traced, torch

PROGRAMS = {**images.PROGRAMS, **sequences.PROGRAMS}
CASES = [(name, way) for name, (_, _, ways) in PROGRAMS.items() for way in ways.split()]


def _flat(values):
    return [part for value in leaves(tuple(values)) for part in (value if isinstance(value, list) else [value])]


def _copied(values):
    return tuple(v.clone() for v in values)


def _opened(model, inputs, way, folder):
    if way == "live":
        return jit(pyflame_rt.from_torch, model, _copied(inputs))
    path = folder / ("model.pt2" if way == "export" else "model.pt")
    if way == "trace":
        save_traced(model, _copied(inputs), path)
    elif way == "script":
        save_scripted(model, path)
    else:
        jit(torch.export.save, jit(torch.export.export, model, _copied(inputs)), path)
    return pyflame_rt.InferenceSession(path)


@pytest.mark.filterwarnings("ignore")  # torch's, of traces that fix what they see
@pytest.mark.parametrize(("name", "way"), CASES, ids=[f"{name}-{way}" for name, way in CASES])
def test_programs(name, way, tmp_path):
    make, given, _ = PROGRAMS[name]
    torch.manual_seed(0)
    model, inputs = make().eval(), given()
    session = _opened(model, inputs, way, tmp_path)
    with torch.no_grad():
        want = _flat([model(*_copied(inputs))])
    got = _flat(session.run(None, {info.name: v.numpy() for info, v in zip(session.get_inputs(), inputs, strict=True)}))
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        close(g, w)
