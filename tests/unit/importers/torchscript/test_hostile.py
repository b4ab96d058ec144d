"""Archives made to do harm, or damaged: refused with a typed error, nothing run, nothing large taken."""

import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError, UnsupportedFormatError
from tests.unit.importers.torchscript.saving import save_scripted, save_traced, torch

SOURCE = """class M(Module):
  __parameters__ = []
  __buffers__ = []
  training : bool
  def forward(self: __torch__.M, x: Tensor) -> Tensor:
{body}
"""
ROOT = b"\x80\x02c__torch__\nM\n)\x81}(X\x08\x00\x00\x00training\x89ub."


def archive(path, *, data=ROOT, body="    return torch.relu(x)", source=None, constants=b"\x80\x02).", more=()):
    """A TorchScript archive with given parts."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("m/data.pkl", data)
        text = SOURCE.format(body=body) if source is None else source
        file.writestr("m/code/__torch__.py", text, compress_type=zipfile.ZIP_DEFLATED)
        file.writestr("m/constants.pkl", constants)
        file.writestr("m/version", "3\n")
        for name, content in more:
            file.writestr(name, content)
    return path


def run(path):
    """Open and run."""
    session = pyflame_rt.InferenceSession(path)
    return session.run(None, {"x": np.ones((2, 2), np.float32)})


def test_the_plain_archive_runs(tmp_path):
    np.testing.assert_array_equal(run(archive(tmp_path / "m.pt"))[0], np.ones((2, 2)))


def called(module, name, *arguments):
    """A pickle that calls a function."""
    body = b"".join(b"X" + struct.pack("<I", len(a)) + a.encode() for a in arguments)
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"(" + body + b"tR."


@pytest.mark.parametrize(
    ("module", "name", "argument"),
    [
        ("os", "system", "touch {mark}"),
        ("posix", "system", "touch {mark}"),
        ("builtins", "eval", "open('{mark}', 'w')"),
        ("builtins", "exec", "open('{mark}', 'w')"),
        ("builtins", "getattr", "x"),
        ("torch.jit._pickle", "os.system", "touch {mark}"),
        ("__torch__", "os.system", "touch {mark}"),
        ("torch", "load", "{mark}"),
        ("subprocess", "Popen", "touch"),
    ],
)
@pytest.mark.parametrize("part", ["data", "constants"])
def test_pickles_that_call_functions(module, name, argument, part, tmp_path):
    mark = tmp_path / "mark"
    pickled = called(module, name, argument.format(mark=mark))
    with pytest.raises(InvalidModelError):
        run(archive(tmp_path / "m.pt", **{part: pickled}))
    assert not mark.exists()


def test_a_pickle_of_python_with_reduce(tmp_path):
    mark = tmp_path / "mark"

    class Harm:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    for protocol in (0, 2, 4):
        with pytest.raises(InvalidModelError):
            run(archive(tmp_path / "m.pt", data=pickle.dumps(Harm(), protocol)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "body",
    [
        "    return __import__('os').system('touch {mark}')",
        "    return eval('1')",
        "    return x.__class__.__mro__",
        "    return (x).__reduce__()",
        "    return torch.os.system('touch {mark}')",
        "    return ops.prim.os.system('touch {mark}')",
        "    import os\n    return x",
        "    return [y for y in x]",
        "    return (lambda: x)()",
        "    global z\n    return x",
        "    return __torch__.os.system('touch {mark}')",
        "    return self.__class__",
        "    return getattr(self, '__dict__')",
        "    return f'{{x}}'",
        "    del x\n    return x",
        "    return CONSTANTS.c99",
        "    return missing",
    ],
)
def test_code_that_is_no_torchscript(body, tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(PyFlameRTError):
        run(archive(tmp_path / "m.pt", body=body.format(mark=mark)))
    assert not mark.exists()


@pytest.mark.parametrize(
    "body",
    [
        "    while True:\n      pass\n    return x",
        "    for i in range(1000000000000):\n      y = torch.add(i, i)\n    return x",
        "    y = [0]\n    for i in range(60):\n      y = torch.add(y, y)\n    return x",
        "    y = torch.mul([0], 1000000000000)\n    return x",
        "    y = 2\n    for i in range(40):\n      y = torch.mul(y, y)\n    return x",
        "    y = torch.pow(9, 99999999)\n    return x",
        "    return (self).forward(x, )",
        "    return torch.linspace(0, 1, 1000000000000)",
        '    y = "a"\n    for i in range(60):\n      y = torch.add(y, y)\n    return x',
    ],
)
def test_code_that_would_not_end(body, tmp_path):
    with pytest.raises(PyFlameRTError):
        run(archive(tmp_path / "m.pt", body=body))


def test_huge_tensors_are_refused_before_memory_is_taken(tmp_path):
    tensor = (
        b"\x80\x02c__torch__\nM\n)\x81}(X\x06\x00\x00\x00weightctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu\x8a\x08\xff\xff\xff\xff\xff\x00\x00\x00tQK\x00"
        b"(\x8a\x08\xff\xff\xff\xff\xff\x00\x00\x00t(K\x01t\x89ccollections\nOrderedDict\n)RtRub."
    )
    path = archive(tmp_path / "m.pt", data=tensor, more=[("m/data/0", bytes(64))])
    tracemalloc.start()
    with pytest.raises(InvalidModelError):
        run(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


def test_a_zip_bomb_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    archive(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("m/code/__torch__/big.py", b"# " + bytes(100 << 20), compress_type=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InvalidModelError, match="code of"):
        run(path)
    archive(path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("m/data/0", bytes(100 << 20), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidModelError, match="compressed"):
        run(path)


def test_names_that_leave_the_archive_touch_nothing(tmp_path):
    outside = tmp_path / "outside.py"
    more = [(f"m/code/../../{outside.name}", "x = 1"), (str(outside), "x = 1"), ("m/code/../evil.py", "x = 1")]
    run(archive(tmp_path / "m.pt", more=more))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pt"]


@pytest.mark.parametrize("source", ["", "def f(:", "((" * 500, "\0", "class M(Module):\n  x : int = open('f')\n"])
def test_sources_that_do_not_parse(source, tmp_path):
    with pytest.raises(InvalidModelError):
        run(archive(tmp_path / "m.pt", source=source))


def test_damaged_archives(tmp_path):
    path = tmp_path / "m.pt"
    save_traced(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),), path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for place in random.integers(0, len(data), 8):
            data[place] = random.integers(0, 256)
        path.write_bytes(data[: random.integers(len(data) // 2, len(data) + 1)])
        try:
            session = pyflame_rt.InferenceSession(path)
            session.run(None, {"input.1": np.ones((1, 3), np.float32)})
        except PyFlameRTError:
            refused += 1
    assert refused > 30


def test_a_state_dict_names_its_importer(tmp_path):
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UnsupportedFormatError, match="PyTorchImporter"):
        pyflame_rt.InferenceSession(tmp_path / "weights.pt")
    result = pyflame_rt.import_module.TorchScriptImporter().import_model(tmp_path / "weights.pt")
    assert not result.success
    assert "no TorchScript archive" in result.error
    save_scripted(torch.nn.ReLU(), tmp_path / "script.pt")
    result = pyflame_rt.import_module.PyTorchImporter().import_model(
        tmp_path / "script.pt", lambda graph, weights: None
    )
    assert "TorchScriptImporter" in result.error
