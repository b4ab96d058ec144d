"""Files: round trips, other people's files, damaged ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyflame as pf
from pyflame_rt.graph.errors import InvalidModelError, ModelNotFoundError, UnsupportedFormatError

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
NESTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=12,
)


@given(NESTS)
@settings(max_examples=80, deadline=None)
def test_nests_come_back(tmp_path_factory, nest):
    path = tmp_path_factory.mktemp("nest") / "x.pf"
    pf.save(nest, path)
    assert pf.load(path) == nest


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("ending", ["pf", "safetensors", "npz"])
def test_tensors_come_back(tmp_path, name, ending):
    if ending == "safetensors":
        pytest.importorskip("safetensors")
    x = (pf.randn([3, 4]) * 3).to(getattr(pf, name))
    path = tmp_path / f"x.{ending}"
    state = {"x": x, "empty": pf.zeros([0, 2]), "scalar": pf.tensor(2.5)}
    if ending == "npz" and name == "bfloat16":
        with pytest.raises(TypeError, match="bfloat16"):
            pf.save(state, path)
        return
    pf.save(state, path)
    back = pf.load(path)
    assert back["x"].dtype == x.dtype
    np.testing.assert_array_equal(back["x"].numpy().astype(np.float64), x.numpy().astype(np.float64))
    assert back["empty"].shape == [0, 2]
    assert back["scalar"].item() == 2.5


def test_a_modules_state_goes_to_torch_and_back(tmp_path):
    pytest.importorskip("safetensors")
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    ours, theirs = pf.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    pf.save(ours, tmp_path / "ours.safetensors")
    theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"))
    x = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(ours(pf.from_numpy(x)).numpy(), theirs(torch.from_numpy(x)).detach().numpy(), rtol=1e-6)
    save_file(torch.nn.Linear(3, 2).state_dict(), tmp_path / "theirs.safetensors")
    ours.load_state_dict(pf.load(tmp_path / "theirs.safetensors"))


def test_damage_is_found(tmp_path):
    good = tmp_path / "good.pf"
    pf.save({"w": pf.arange(100.0)}, good)
    data = good.read_bytes()
    rng = np.random.default_rng(0)
    for number in range(120):
        damaged = bytearray(data[: rng.integers(len(data))] if number % 3 == 0 else data)
        if number % 3 and damaged:
            damaged[rng.integers(len(damaged) - 30 if number % 3 == 1 else 40)] ^= 1 << rng.integers(8)
        if bytes(damaged) == data:
            continue
        path = tmp_path / "bad.pf"
        path.write_bytes(damaged)
        try:
            found = pf.load(path)
        except InvalidModelError:
            continue
        np.testing.assert_array_equal(found["w"].numpy(), np.arange(100))  # a flip in the padding harms nothing


def test_errors_are_typed(tmp_path):
    with pytest.raises(ModelNotFoundError):
        pf.load(tmp_path / "none.pf")
    with pytest.raises(UnsupportedFormatError, match="suffix"):
        pf.save({}, tmp_path / "x.dat")
    with pytest.raises(TypeError, match="object"):
        pf.save({"a": object()}, tmp_path / "x.pf")
    with pytest.raises(TypeError, match="mapping from names"):
        pf.save([1], tmp_path / "x.npz")
    (tmp_path / "junk.npz").write_bytes(b"junk")
    with pytest.raises(InvalidModelError):
        pf.load(tmp_path / "junk.npz")
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"nested|deep"):
        pf.save(loop, tmp_path / "x.pf")
