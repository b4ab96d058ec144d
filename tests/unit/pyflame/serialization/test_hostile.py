"""Files that say they hold more than they do: refused before memory is taken, with typed errors only."""

import io
import json
import os
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

import pyflame as pf
import pyflame.serialization as files
from pyflame_rt.graph.errors import InvalidModelError, PyFlameRTError

BLOCK = 1 << 20  # of real data, which hostile files name again and again


def native(data, tensors, blob=b"", sums=None):
    body = json.dumps({"data": data, "tensors": tensors})
    return wrapped(body, sums if sums is not None else [zlib.crc32(blob)] * len(tensors), blob)


def wrapped(body, sums, blob=b""):
    crc = zlib.crc32(body.encode("utf-8", "surrogatepass"))
    header = json.dumps({"body": body, "body_crc": crc, "crc": sums}).encode()
    header += b" " * (-(16 + len(header)) % 64)
    return b"PYFLAME\1" + len(header).to_bytes(8, "little") + header + blob


def safetensors(entries, blob=b""):
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + blob


def npy(shape, data, dtype="<f4"):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def npz(members, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return out.getvalue()


def peak_of(path, **options):
    """Bytes of memory that a load that is refused takes at most."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidModelError) as found:
            pf.load(path, **options)
        return tracemalloc.get_traced_memory()[1], str(found.value)
    finally:
        tracemalloc.stop()


ONE = {"dtype": "uint8", "shape": [BLOCK], "offset": 0}
SAFE = {"dtype": "U8", "shape": [BLOCK], "data_offsets": [0, BLOCK]}
AMPLIFIED = {
    "overlapping.pf": lambda: native([{"array": i} for i in range(200)], [ONE] * 200, bytes(BLOCK)),
    "shifted.pf": lambda: native(
        [{"array": i} for i in range(200)],
        [{"dtype": "uint8", "shape": [BLOCK - 200], "offset": i} for i in range(200)],
        bytes(BLOCK),
    ),
    "overlapping.safetensors": lambda: safetensors({str(i): SAFE for i in range(200)}, bytes(BLOCK)),
    "huge.npz": lambda: npz({f"{i}.npy": npy((BLOCK * 2,), bytes(BLOCK * 8)) for i in range(5)}),
    "lying.npz": lambda: npz({"a.npy": npy((1 << 38,), b"")}),
    "lying-more.npz": lambda: npz({"a.npy": npy((1 << 20, 1 << 40), bytes(100))}),
    "lists.pf": lambda: wrapped('{"data":[' + "[]," * 4_100_000 + '0],"tensors":[]}', []),
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_amplification_is_refused_before_memory_is_taken(tmp_path, name, monkeypatch):
    monkeypatch.setattr(files, "_USUAL_BYTES", 32 << 20)  # instead of a gigabyte
    path = tmp_path / name
    path.write_bytes(AMPLIFIED[name]())
    taken, text = peak_of(path)
    assert taken < 8 * path.stat().st_size + (8 << 20)
    assert name in text


def test_an_array_named_twice_is_one_array(tmp_path):
    """As it was when it was saved; so a file cannot make many large arrays of one."""
    shared = np.arange(1000)
    pf.save([shared] * 50 + [b"text" * 100] * 2, tmp_path / "x.pf")
    again = pf.load(tmp_path / "x.pf")
    assert all(array is again[0] for array in again[:50])
    assert again[50] is again[51]
    again[0][0] = 5  # and may be written to
    path = tmp_path / "many.pf"
    path.write_bytes(native([{"array": 0}] * 5000 + [{"bytes": 0}] * 5000, [ONE], bytes(BLOCK)))
    tracemalloc.start()
    found = pf.load(path)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 10_000
    assert taken < 20 * BLOCK


def test_a_limit_may_be_given(tmp_path):
    values = {"a": np.zeros(BLOCK, np.float32), "b": np.ones(3)}
    np.savez_compressed(tmp_path / "x.npz", **values)
    assert pf.load(tmp_path / "x.npz")["a"].shape == (BLOCK,)
    assert pf.load(tmp_path / "x.npz", max_bytes=8 << 20)["b"].tolist() == [1, 1, 1]
    for name in ("x.npz", "x.pf", "x.safetensors"):
        if not name.endswith("npz"):
            pf.save({k: pf.tensor(v) for k, v in values.items()}, tmp_path / name)
        with pytest.raises(InvalidModelError, match=r"max_bytes=4000000"):
            pf.load(tmp_path / name, max_bytes=4_000_000)


def test_arrays_by_columns_come_back(tmp_path):
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.savez(tmp_path / "x.npz", a=array, b=np.float32(3), c=np.zeros((0, 2)))
    found = pf.load(tmp_path / "x.npz")
    np.testing.assert_array_equal(found["a"].numpy(), array)
    assert found["b"].item() == 3
    assert found["c"].shape == (0, 2)


ODD = {
    "not-json.pf": wrapped("{", []),
    "deep.pf": wrapped("[" * 100_000, []),
    "no-data.pf": wrapped('{"tensors": []}', []),
    "no-table.pf": wrapped('{"data": 1}', []),
    "odd-sums.pf": native({"tensor": 0}, [ONE], bytes(BLOCK), ["x"]),
    "negative.pf": native({"tensor": 0}, [{"dtype": "uint8", "shape": [-1], "offset": 0}]),
    "beyond.pf": native({"tensor": 0}, [{"dtype": "uint8", "shape": [10], "offset": 1 << 61}]),
    "true.pf": native({"tensor": 0}, [{"dtype": "uint8", "shape": [True], "offset": 0}], b"1"),
    "rank.pf": native({"tensor": 0}, [{"dtype": "uint8", "shape": [1] * 100, "offset": 0}], b"1"),
    "unhashable.pf": native({"dict": [[[1], 2]]}, []),
    "number.pf": native({"int": "9" * 5000}, []),
    "kind.pf": native({"os.system": ["true"]}, []),
    "short.pf": b"PYFLAME\1\5",
    "empty.pf": b"",
    "empty.safetensors": b"",
    "list.safetensors": safetensors([1]),
    "entry.safetensors": safetensors({"a": 3}),
    "ends.safetensors": safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}, b"1234"),
    "text.safetensors": safetensors({"a": {"dtype": "F32", "shape": "ab", "data_offsets": [0, 4]}}, b"1234"),
    "empty.npz": b"",
    "object.npz": npz({"a.npy": npy((1,), b"12345678", "|O")}),
    "text.npz": npz({"a.npy": npy((1,), b"1234", "|S4")}),
    "cut.npz": npz({"a.npy": b"\x93NUMPY"}),
    "version.npz": npz({"a.npy": b"\x93NUMPY\x09\x00" + b"\0" * 40}),
    "no-arrays.npz": npz({"readme.txt": b"hello"}),
    "empty.pt": b"",
    "zip.pt": npz({"archive/data.pkl": b"cos\nsystem\n(S'true'\ntR."}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_typed_errors(tmp_path, name):
    if name.endswith(".pt"):
        pytest.importorskip("torch")
    path = tmp_path / name
    path.write_bytes(ODD[name])
    with pytest.raises(InvalidModelError) as found:
        pf.load(path)
    assert name in str(found.value)


def test_texts_that_are_no_text_come_back(tmp_path):
    path = tmp_path / "x.pf"
    path.write_bytes(wrapped('{"data": "\ud800", "tensors": []}', []))
    assert pf.load(path) == "\ud800"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_files_that_cannot_be_read_are_typed_errors(tmp_path):
    path = tmp_path / "x.pf"
    pf.save(1, path)
    path.chmod(0)
    with pytest.raises(InvalidModelError, match="cannot be read"):
        pf.load(path)


@pytest.mark.parametrize("suffix", ["pf", "safetensors", "npz"])
def test_changed_bytes_are_typed_errors_or_harmless(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    pf.save({"a": pf.ones([40]), "b": pf.zeros([3], dtype=pf.int64)}, path)
    good = path.read_bytes()
    for place in range(0, len(good), max(1, len(good) // 150)):
        for value in (0, 0x22, 0x7B, 0xFF):
            path.write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            try:
                pf.load(path)
            except PyFlameRTError:
                continue


def test_a_file_that_shrinks_while_it_is_read_is_a_typed_error(tmp_path, monkeypatch):
    path = tmp_path / "x.pf"
    pf.save({"a": pf.ones([100_000])}, path)
    header = files.TensorFile.header

    def shrinking(self, start):
        found = header(self, start)
        os.truncate(path, 1000)
        return found

    monkeypatch.setattr(files.TensorFile, "header", shrinking)
    with pytest.raises(InvalidModelError, match="ends early"):
        pf.load(path)
