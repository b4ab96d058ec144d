"""Programs of torch.export, from files and from live modules, give torch's numbers."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import (
    InputError,
    InvalidModelError,
    PyFlameRTError,
    ShapeMismatchError,
    UnsupportedOperatorError,
)
from pyflame_rt.importers.torch_export.sizes import size_from_text
from tests.tolerances import within
from tests.unit.importers.torchscript import networks
from tests.unit.importers.torchscript.modules import MODULES
from tests.unit.importers.torchscript.saving import close, jit, leaves, torch

nn = torch.nn
SAMPLE = [*list(MODULES)[::6], "MultiheadAttention", "GRU", "Transformer"]


def _saved(model, inputs, path, **more):
    program = jit(torch.export.export, model.eval(), inputs, **more)
    jit(torch.export.save, program, path)
    return path


def _compare(session, model, inputs):
    feed = {info.name: v.numpy() for info, v in zip(session.get_inputs(), inputs, strict=True)}
    with torch.no_grad():
        want = [w for w in leaves(model(*[v.clone() for v in inputs])) if w is not None]
    got = session.run(None, feed)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        close(g, w)


@pytest.mark.parametrize("name", SAMPLE)
def test_live_modules(name):
    torch.manual_seed(1)
    model, inputs = MODULES[name]()
    session = jit(pyflame_rt.from_torch, model.eval(), tuple(v.clone() for v in inputs))
    _compare(session, model, inputs)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(3))
        self.fixed = torch.full((3,), 2.0)

    def forward(self, x):
        z = self.linear(x).relu_() + self.shift * 2.0 + self.fixed
        z[:, 1] = 5.0
        first, second = z.split([1, 2], dim=1)
        return {"joined": torch.cat([second, first], 1).view(x.shape[0], -1), "more": (z.sum(), z.max(1)[0])}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("s0", "s0"),
        ("Symbol('s77', positive=True, integer=True)", "s77"),
        ("Mul(Integer(2), Symbol('s77', positive=True, integer=True))", "2*s77"),
        ("Add(Pow(Symbol('a'), Integer(2)), Mul(Symbol('a'), Symbol('b')), Integer(-1))", "a*a + a*b - 1"),
        ("Pow(Symbol('a'), Integer(99999999))", "\"Pow(Symbol('a'), Integer(99999999))\""),
        ("Add(Symbol('a')", "\"Add(Symbol('a')\""),
        ("Mul()", '"Mul()"'),
    ],
)
def test_sizes_are_read(text, size):
    assert str(size_from_text(text)) == size


def test_inputs_of_related_sizes():
    """An input of twice as many rows as the other, whose size is told by the other's."""

    class Pair(nn.Module):
        def forward(self, x, y):
            return y + torch.cat([x, x]).reshape(x.shape[0] * 2, -1)

    rows = torch.export.Dim("rows", min=2, max=64)
    inputs = torch.randn(3, 4), torch.randn(6, 4)
    session = jit(pyflame_rt.from_torch, Pair(), inputs, dynamic_shapes=({0: rows}, {0: 2 * rows}))
    first, second = (str(next(iter(info.shape or ()))) for info in session.graph().inputs)
    assert (first.isidentifier(), second) == (True, f"2*{first}")
    _compare(session, Pair(), (torch.randn(5, 4), torch.randn(10, 4)))


def test_sizes_stay_symbols(tmp_path):
    model = Mixed().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    path = _saved(model, (torch.randn(2, 4),), tmp_path / "m.pt2", dynamic_shapes={"x": {0: batch}})
    session = pyflame_rt.InferenceSession(path)
    assert session.get_inputs()[0].shape == [None, 4]
    for rows in (1, 2, 7):
        _compare(session, model, (torch.randn(rows, 4),))
    with pytest.raises(ShapeMismatchError, match="0 to 64"):
        session.run(None, {"x": np.zeros((65, 4), np.float32)})


class Paired(nn.Module):
    """Reads a size of which another is twice as much, and one."""

    def forward(self, x):
        return x.reshape(2, -1, 3).sum(1), torch.arange(x.shape[0] // 2)


@pytest.mark.parametrize("more", [0, 4])
def test_sizes_that_follow_from_others(more, tmp_path):
    half = torch.export.Dim("half")
    path = _saved(Paired(), (torch.randn(8, 3),), tmp_path / "m.pt2", dynamic_shapes={"x": {0: 2 * half + more}})
    session = pyflame_rt.InferenceSession(path)
    (size, _) = session.graph().inputs[0].shape
    assert size - more == 2 * ((size - more) // 2)  # one name, not the text of a formula
    for rows in (6, 12):
        x = torch.randn(rows, 3)
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], Paired()(x)[0].numpy(), **within("sums"))
        assert session.run(None, {"x": x.numpy()})[1].shape == (rows // 2,)


class Statements(nn.Module):
    """Conversions: torch writes what it takes for granted of their arguments."""

    def forward(self, x):
        return x.to(torch.float32) * 2 + x.to(torch.float64).to(torch.float32)


def test_statements_about_tensors_are_passed_over(tmp_path):
    x = torch.randn(2, 4)
    path = _saved(Statements(), (x,), tmp_path / "m.pt2")
    _compare(pyflame_rt.InferenceSession(path), Statements(), (x,))


@pytest.mark.parametrize("name", ["ResNet18", "GptLike", "Tagger"])
def test_networks(name, tmp_path):
    torch.manual_seed(2)
    model = getattr(networks, name)().eval()
    inputs = (torch.randn(2, 3, 32, 32) if name == "ResNet18" else torch.randint(0, 30, (2, 6)),)
    _compare(pyflame_rt.InferenceSession(_saved(model, inputs, tmp_path / "m.pt2")), model, inputs)


def test_files_open_where_torch_is_not_installed(tmp_path):
    model, x = Mixed().eval(), torch.randn(2, 4)
    path = _saved(model, (x,), tmp_path / "m.pt2")
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "want.npy", model(x)["joined"].detach().numpy())
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, pyflame_rt
session = pyflame_rt.InferenceSession({str(path)!r})
got = session.run(None, {{"x": np.load({str(tmp_path / "x.npy")!r})}})[0]
np.testing.assert_allclose(got, np.load({str(tmp_path / "want.npy")!r}), rtol=1e-5)
print("done")
"""
    root = Path(__file__).parents[4]
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=False)
    assert run.stdout == "done\n", run.stderr


def test_a_model_with_state_is_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"eval\(\)"):
        jit(pyflame_rt.from_torch, nn.BatchNorm1d(3).train(), (torch.randn(4, 3),))


def test_what_is_no_module_is_refused():
    with pytest.raises(InputError, match="int"):
        pyflame_rt.from_torch(3, ())


def test_damaged_programs(tmp_path):
    path = _saved(Mixed(), (torch.randn(2, 4),), tmp_path / "m.pt2")
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    (model,) = [name for name in parts if name.endswith("models/model.json")]
    program = json.loads(parts[model])

    def rewritten(change):
        copy = json.loads(json.dumps(program))
        change(copy["graph_module"])
        with zipfile.ZipFile(path, "w") as file:
            for name, data in parts.items():
                file.writestr(name, json.dumps(copy) if name == model else data)
        return path

    def odd(module):
        module["graph"]["nodes"][0]["target"] = "os.system"

    def lost(module):
        module["graph"]["nodes"].pop(0)

    def emptied(module):
        module["graph"].clear()

    for change, kind in ((odd, UnsupportedOperatorError), (lost, InvalidModelError), (emptied, InvalidModelError)):
        with pytest.raises(kind):
            pyflame_rt.InferenceSession(rewritten(change))
    whole, random, refused = rewritten(lambda _: None).read_bytes(), np.random.default_rng(0), 0
    for _ in range(40):
        data = bytearray(whole)
        for place in random.integers(0, len(data), 12):
            data[place] = random.integers(0, 256)
        path.write_bytes(data[: random.integers(len(data) // 2, len(data) + 1)])
        try:
            pyflame_rt.InferenceSession(path)
        except PyFlameRTError:
            refused += 1
    assert refused > 20
