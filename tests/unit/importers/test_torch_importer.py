"""State dicts of torch: read without torch, built by a definer, hostile archives refused."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import pyflame_rt
from pyflame_rt import DType, Graph, import_module
from pyflame_rt.graph.errors import InvalidModelError, UnsupportedFormatError
from pyflame_rt.importers.detection import detect
from pyflame_rt.importers.registry import find_importer
from pyflame_rt.importers.torch_importer import read_state_dict
from pyflame_rt.importers.torch_pickle import read_archive

torch = pytest.importorskip("torch")
SQUARE = np.arange(9, dtype=np.float32).reshape(3, 3)


def define(graph, weights):
    graph.add_input("x", [None, 3], DType.Float32)
    graph.add_initializer("w", weights["fc.weight"])
    graph.add_node("fc", "Gemm", ["x", "w"], ["y"])
    graph.add_output("y", [None, 3], DType.Float32)


def state():
    return {"fc.weight": torch.from_numpy(SQUARE.copy())}


def answer(result):
    assert result.success, result.error
    return pyflame_rt.InferenceSession(result.graph).run(None, {"x": np.eye(3, dtype=np.float32)})[0]


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("key", [None, "model_state_dict", "state_dict", "model"])
def test_square_weights_are_transposed_wherever_the_state_dict_is(tmp_path, prefix, key):
    weights = {prefix + name: value for name, value in state().items()}
    torch.save(weights if key is None else {"epoch": 3, key: weights}, tmp_path / "m.pth")
    result = import_module.PyTorchImporter().import_model(tmp_path / "m.pth", define)
    np.testing.assert_array_equal(answer(result), SQUARE.T)
    assert ["transB=1" in line for line in result.stats.warnings] == [True]
    assert result.stats.parameter_count == 9


@pytest.mark.parametrize("given", [0, 1])
def test_an_explicit_transpose_and_computed_weights_stay(tmp_path, given):
    torch.save(state(), tmp_path / "m.pt")

    def explicit(graph, weights):
        define(graph, weights)
        graph.nodes[0].set_attr("transB", given)

    def computed(graph, weights):
        define(graph, {"fc.weight": weights["fc.weight"].numpy().T})

    importer = import_module.PyTorchImporter()
    result = importer.import_model(tmp_path / "m.pt", explicit)
    np.testing.assert_array_equal(answer(result), SQUARE.T if given else SQUARE)
    assert result.stats.warnings == []
    np.testing.assert_array_equal(answer(importer.import_model(tmp_path / "m.pt", computed)), SQUARE.T)


def test_a_definer_may_return_a_graph_and_be_given_by_keyword(tmp_path):
    torch.save(state(), tmp_path / "m.pt")

    def returning(graph, weights):
        other = Graph("other")
        define(other, weights)
        return other

    result = import_module.import_model(tmp_path / "m.pt", definer=returning)
    np.testing.assert_array_equal(answer(result), SQUARE.T)
    assert result.graph.name == "other"
    wrong = import_module.import_model(tmp_path / "m.pt", definer=lambda graph, weights: 3)
    assert "returns None or a Graph, got int" in wrong.error


def test_element_types_views_and_tied_weights_are_what_torch_has(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    kinds = ["float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "uint16", "float8_e5m2", "complex64"]
    made = {kind: torch.tensor([0.0, 1.0, 2.0]).to(getattr(torch, kind)) for kind in kinds}
    made |= {"t": base.T, "part": base[1:3, ::2], "wide": torch.ones(1).expand(3), "scalar": torch.tensor(2.5)}
    made |= {"none": torch.empty(0, 3), "p": torch.nn.Parameter(base), "same": base}
    torch.save(made, tmp_path / "m.pt")
    read = read_archive(tmp_path / "m.pt", 1 << 20)
    assert set(read) == set(made)
    for name, tensor in made.items():
        assert read[name].shape == tuple(tensor.shape)
        wanted = tensor.detach().to(torch.complex128).numpy()
        np.testing.assert_array_equal(read[name].astype(np.complex128), wanted, err_msg=name)
        assert str(read[name].dtype) == str(tensor.dtype).removeprefix("torch.")


def test_safetensors_are_told_by_content(tmp_path):
    import pyflame as pf

    pf.save({"fc.weight": pf.tensor(SQUARE)}, tmp_path / "m.safetensors")
    moved = (tmp_path / "m.safetensors").rename(tmp_path / "m.ckpt")
    assert detect(moved) == "safetensors"
    np.testing.assert_array_equal(answer(import_module.import_model(moved, definer=define)), SQUARE.T)


def test_errors_name_what_is_there(tmp_path):
    torch.save({"epoch": 3, "weights": state()}, tmp_path / "m.pt")
    importer = import_module.PyTorchImporter()
    assert "state_dict_key='net'. It has 'epoch', 'weights'" in (
        importer.import_model(tmp_path / "m.pt", define, state_dict_key="net").error
    )
    assert "state_dict_key=" in importer.import_model(tmp_path / "m.pt", define).error
    assert importer.import_model(tmp_path / "m.pt", define, state_dict_key="weights")
    asking = {"definer": lambda graph, weights: weights["fc.bias"], "state_dict_key": "weights"}
    missing = import_module.import_model(tmp_path / "m.pt", **asking)
    assert missing.error == "the state dict has no 'fc.bias'. It has 'fc.weight'"
    large = importer.import_model(tmp_path / "m.pt", define, state_dict_key="weights", max_bytes=35)
    assert "declares 36 bytes; 35 are allowed" in large.error


def test_tensors_that_share_a_storage_are_counted_each(tmp_path):
    torch.save({str(i): torch.ones(1).expand(8) for i in range(4)}, tmp_path / "m.pt")
    with pytest.raises(InvalidModelError, match="max_bytes=127"):
        read_state_dict(tmp_path / "m.pt", max_bytes=127)
    assert len(read_state_dict(tmp_path / "m.pt", max_bytes=128)) == 4


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.other"])
def test_a_session_names_the_importer(tmp_path, name):
    torch.save(state(), tmp_path / name)
    with pytest.raises(UnsupportedFormatError, match="PyTorchImporter"):
        pyflame_rt.InferenceSession(tmp_path / name)
    assert "PyTorchImporter" in import_module.import_model(tmp_path / name).error


def test_the_old_form_is_named(tmp_path):
    torch.save(state(), tmp_path / "m.pt", _use_new_zipfile_serialization=False)
    assert "before torch 1.6" in import_module.PyTorchImporter().import_model(tmp_path / "m.pt", define).error


def test_torch_is_not_needed(tmp_path):
    torch.save(state(), tmp_path / "m.pt")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pyflame_rt.importers.torch_importer import read_state_dict\n"
        "print(float(read_state_dict(sys.argv[1])['fc.weight'].numpy().sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.pt")], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("36.0", 0), done.stderr


def archive(path, data, members=(), compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("m/data.pkl", data)
        for name, content in members:
            file.writestr("m/" + name, content)
    return path


def tensor_pickle(count=4, size=(4,), stride=(1,), key="0"):
    """The pickle of one tensor, written by hand."""

    def text(value):
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def ints(values):
        return b"(" + b"".join(b"\x8a\x08" + v.to_bytes(8, "little", signed=True) for v in values) + b"t"

    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + ints((count,))[1:-1] + b"tQ"
    )
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + ints(size) + ints(stride) + b"\x89}tR"
    return b"\x80\x02}" + text("w") + call + b"s."


def test_the_hand_written_archive_is_right(tmp_path):
    path = archive(tmp_path / "m.pt", tensor_pickle(), [("data/0", SQUARE.tobytes()[:16])])
    np.testing.assert_array_equal(read_state_dict(path)["w"].numpy(), [0, 1, 2, 3])


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x02ctorch\nserialization.os.system\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x02ctorch\n__class__\n.",
        b"\x80\x02ccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sb.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02(ios\nsystem\n.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        pickle.dumps(Evil(open, "made_by_pickle", "w"), 2),
        tensor_pickle(size=(1 << 40,)),
        tensor_pickle(size=(1 << 40,), stride=(0,)),
        tensor_pickle(size=(5,)),
        tensor_pickle(size=(-1,)),
        tensor_pickle(stride=(-1,)),
        tensor_pickle(count=1 << 50),
        tensor_pickle(key="../../secret"),
        tensor_pickle(key="/etc/passwd"),
        tensor_pickle()[:-20],
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02t.",
        b"\x80\x020.",
        b"",
    ],
)
def test_hostile_pickles_are_refused_and_nothing_runs(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    path = archive(tmp_path / "m.pt", data, [("data/0", bytes(16))])
    with pytest.raises(InvalidModelError):
        read_state_dict(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.pt"]


def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    packed = archive(tmp_path / "a.pt", tensor_pickle(), [("data/0", bytes(1 << 20))], zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidModelError, match="compressed"):
        read_state_dict(packed)
    plain = archive(tmp_path / "b.pt", tensor_pickle(), [("data/0", bytes(16))])
    raw = plain.read_bytes()
    at = raw.rindex(b"PK\x01\x02") + 20
    plain.write_bytes(raw[:at] + (1 << 30).to_bytes(4, "little") * 2 + raw[at + 8 :])
    with pytest.raises(InvalidModelError, match="declared in a file of"):
        read_state_dict(plain)


def test_shared_lists_that_would_print_without_end_are_refused_quickly(tmp_path):
    nested = b"\x80\x02]" + b"q\x00" + b"".join(b"h\x00h\x00\x86q\x00" for _ in range(80)) + b"Q."
    with pytest.raises(InvalidModelError, match="persistent id"):
        read_state_dict(archive(tmp_path / "m.pt", nested))


def test_every_truncation_is_an_error_of_ours(tmp_path):
    whole = io.BytesIO()
    torch.save(state(), whole)
    path = tmp_path / "m.pt"
    for end in range(0, len(whole.getvalue()) - 1, 37):
        path.write_bytes(whole.getvalue()[:end])
        result = import_module.PyTorchImporter().import_model(path, define)
        assert not result.success
        assert result.error


def test_bin_files_are_torch_by_content_alone(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"something else")
    assert find_importer(path) is None
    torch.save({"w": torch.ones(2)}, path)
    assert find_importer(path).name == "pytorch"
    assert find_importer("pytorch_model.bin").name == "pytorch"
