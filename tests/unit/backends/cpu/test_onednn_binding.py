"""The binding's ground: loading, descriptors, memory, attributes, owners of handles, forks, messages."""

import copy
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from pyflame_rt.backends.cpu.onednn import (
    Attr,
    MemDesc,
    Memory,
    OneDnnError,
    OneDnnUnavailable,
    Stream,
    aligned_empty,
    api,
    available,
    engine,
    execute,
    generation,
    library,
    live_handles,
    pack,
    unpack,
)
from pyflame_rt.backends.cpu.onednn.primitives import convolution, eltwise, matmul, pooling, reorder
from pyflame_rt.backends.cpu.run.threads import use_threads
from tests.unit.resting import at_rest

pytestmark = [
    pytest.mark.skipif(not available(), reason="oneDNN is not installed"),
    pytest.mark.usefixtures("no_leaks"),
]


def test_version_and_instruction_set():
    assert api.version() >= (3, 2, 0)
    assert api.cpu_isa()


@pytest.mark.parametrize(
    ("table", "prefix"),
    [
        (api.ELTWISE, "eltwise"),
        (api.BINARY, "binary"),
        (api.POOLING, "pooling"),
        (api.REDUCTION, "reduction"),
        (api.RESAMPLING, "resampling"),
        (api.SOFTMAX, "softmax"),
        (api.CONVOLUTION, "convolution"),
        (api.DECONVOLUTION, "deconvolution"),
        (api.LRN, "lrn"),
    ],
)
def test_constants_are_the_librarys_own(table, prefix):
    names = {name: api.lib().dnnl_alg_kind2str(number).decode() for name, number in table.items()}
    assert names == {name: f"{prefix}_{name}" for name in table}


def test_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "_failure", None)
    monkeypatch.setattr(library, "_installed", list)
    monkeypatch.setattr(library, "find_library", lambda _name: None)
    assert not library.available()
    with pytest.raises(OneDnnUnavailable, match="pip install onednn-cpu-gomp"):
        library.load()


def test_broken_library_says_where(monkeypatch, tmp_path):
    broken = tmp_path / "libdnnl.so.3"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "_library", None)
    monkeypatch.setattr(library, "_failure", None)
    monkeypatch.setattr(library, "_installed", lambda: [str(broken)])
    with pytest.raises(OneDnnUnavailable, match="does not load"):
        library.load()


SPINNING = """
import ctypes, os
from pyflame_rt.backends.cpu.run import gomp
seen = []
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
gomp._open_gomp = lambda: seen.append(libc.getenv(b"GOMP_SPINCOUNT"))
gomp.load_gomp()
print(seen[0], libc.getenv(b"GOMP_SPINCOUNT"), os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, "b'2000' None None"),
        ({"GOMP_SPINCOUNT": "7"}, "b'7' b'7' 7"),
        ({"OMP_WAIT_POLICY": "passive"}, "None None None"),
    ],
)
def test_spinning_is_bounded_only_while_loading_and_only_by_default(setting, expected):
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")} | setting
    env["PYFLAME_LAZY_IMPORT"] = "1"  # else libgomp is there before the test looks
    done = subprocess.run([sys.executable, "-c", SPINNING], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_blocked_descriptor():
    desc = MemDesc((2, 3, 5, 7), "f32", "aBcd8b")
    assert desc.dims == (2, 3, 5, 7)
    assert desc.padded_dims == (2, 8, 5, 7)
    assert desc.size == 2 * 8 * 5 * 7 * 4
    assert desc.blocks == ((1, 8),)
    assert desc.layout == "aBcd8b"
    assert not desc.is_plain
    assert repr(desc) == "MemDesc(2x3x5x7 f32 aBcd8b)"
    with pytest.raises(ValueError, match="aBcd8b has no plain strides"):
        _ = desc.strides


@pytest.mark.parametrize(
    ("tag", "strides"), [("abcd", (105, 35, 7, 1)), ("acdb", (105, 1, 21, 3)), ("dcba", (1, 2, 6, 30))]
)
def test_plain_descriptor(tag, strides):
    desc = MemDesc((2, 3, 5, 7), np.float32, tag)
    assert desc.strides == strides
    assert desc.layout == tag
    assert desc.is_plain
    assert desc.is_dense_row_major == (tag == "abcd")
    assert desc == MemDesc((2, 3, 5, 7), "f32", strides=strides)
    assert desc.size == 2 * 3 * 5 * 7 * 4


@pytest.mark.parametrize("tag", ["Acdb8a", "ABcd8b8a", "Abcd8a", "aBcd8b"])
@pytest.mark.parametrize("dims", [(16, 1, 3, 3), (16, 1, 1, 1), (8, 1, 3, 3), (16, 8, 1, 1), (8, 8, 1, 3)])
def test_a_blocked_layout_with_axes_of_one_element_can_be_made_again_from_its_name(tag, dims):
    desc = MemDesc(dims, "f32", tag)
    assert MemDesc(dims, "f32", desc.layout) == desc


def test_the_layout_of_weights_of_single_channels_has_the_name_the_library_gives_it():
    assert MemDesc((16, 1, 1, 3, 3), "f32", "decbA8a").layout == "decbA8a"


def test_strided_and_open_descriptors():
    assert MemDesc((2, 3), "f32", strides=(10, 2)).layout == "plain(10, 2)"
    assert MemDesc((2, 3), "f32").layout == "ab"
    chosen_later = MemDesc((2, 3), "f32").any()
    assert chosen_later.is_any
    assert (chosen_later.layout, chosen_later.size) == ("any", 0)
    assert repr(MemDesc((api.RUNTIME_DIM, 3), "f32", strides=(3, 1))) == "MemDesc(?x3 f32 ab)"


def test_equality_and_hash_ignore_strides_of_single_dims():
    a = MemDesc((1, 4), "f32", strides=(4, 1))
    b = MemDesc((1, 4), "f32", strides=(99, 1))
    assert a == b
    assert hash(a) == hash(b)
    assert a != MemDesc((1, 4), "s32")
    assert a != MemDesc((1, 4), "f32", "any")
    assert a != "ab"
    assert len({a, b, MemDesc((1, 4), "f32")}) == 1


def test_views_of_one_memory():
    desc = MemDesc((2, 6), "f32")
    assert desc.reshape((2, 3, 2)).strides == (6, 2, 1)
    array = np.zeros((2, 3, 5), np.float32)
    assert MemDesc.of(array).permute((2, 0, 1)) == MemDesc.of(array.transpose(2, 0, 1))
    window = desc.window((2, 2), (0, 3))
    assert (window.offset, window.strides) == (3, (6, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MemDesc((1, 2), "f32", "nonsense"), "no layout 'nonsense'"),
        (lambda: MemDesc((1, 2), np.complex64), "no element type"),
        (lambda: MemDesc((1, 2), "f32", "ab", strides=(2, 1)), "not both"),
        (lambda: MemDesc((1,) * 13, "f32"), "at most 12 dims"),
        (lambda: Attr().eltwise("sine"), "no eltwise 'sine'"),
        (lambda: Attr().binary("xor", MemDesc((1,), "f32")), "no binary 'xor'"),
        (lambda: eltwise(MemDesc((1,), "f32"), MemDesc((1,), "f32"), kind="sine"), "no eltwise kind 'sine'"),
    ],
)
def test_mistakes_that_never_reach_the_library(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_bad_arguments_name_the_function():
    f32 = lambda *dims: MemDesc(dims, "f32")  # noqa: E731
    with pytest.raises(OneDnnError, match="dnnl_memory_desc_create_with_tag: invalid arguments"):
        MemDesc((1, 2), "f32", "aBcd8b")
    with pytest.raises(OneDnnError, match="dnnl_matmul_primitive_desc_create") as caught:
        matmul(f32(2, 3), f32(4, 5), f32(2, 5))
    assert caught.value.function == "dnnl_matmul_primitive_desc_create"
    assert str(copy.copy(caught.value)) == str(caught.value)
    size = {"strides": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0)}
    with pytest.raises(OneDnnError, match="dnnl_convolution_forward_primitive_desc_create"):
        convolution(f32(1, 3, 4, 4), f32(8, 3, 3, 3), f32(1, 8, 4, 4), **size)
    del caught


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32])
@pytest.mark.parametrize("tag", ["aBcd8b", "aBcd16b", "acdb", "dcba"])
def test_pack_and_unpack(dtype, tag):
    array = (np.arange(2 * 5 * 3 * 4) % 97).reshape(2, 5, 3, 4).astype(dtype)
    target = MemDesc(array.shape, dtype, tag)
    packed = pack(array, target)
    assert packed.nbytes == target.size
    assert packed.ctypes.data % 64 == 0
    np.testing.assert_array_equal(unpack(packed, target), array)


def test_pack_of_a_view():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(pack(array, MemDesc((4, 3), "f32")).view(np.float32).reshape(4, 3), array)


def test_padding_of_packed_channels_is_zero():
    packed = pack(np.ones((1, 3, 2, 2), np.float32), MemDesc((1, 3, 2, 2), "f32", "aBcd8b"))
    blocks = packed.view(np.float32).reshape(4, 8)
    assert blocks[:, :3].all()
    assert not blocks[:, 3:].any()


def test_memory_points_where_told():
    a, b = np.zeros(4, np.float32), np.ones(4, np.float32)
    with MemDesc.of(a) as desc, Memory(desc, a.ctypes.data) as memory:
        assert memory.pointer == a.ctypes.data
        memory.set_pointer(b.ctypes.data)
        assert memory.pointer == b.ctypes.data


def test_handles_are_counted_and_freed():
    at_rest()  # what other tests left behind is not counted
    before = live_handles()
    desc = MemDesc((4, 4), "f32")
    assert live_handles() == before + 1
    primitive = reorder(desc, MemDesc((4, 4), "f32", "ba"))
    kept = primitive.args["dst"]
    assert not primitive.closed
    assert primitive.handle == primitive.handle
    primitive.close()
    primitive.close()
    assert primitive.closed
    assert kept.layout == "ba"  # held by us, so still alive
    with pytest.raises(ValueError, match="closed"):
        _ = primitive.handle
    kept.close()
    desc.close()
    assert live_handles() == before
    assert repr(desc) == "MemDesc(closed)"
    with pytest.raises(ValueError, match="MemDesc is closed"):
        _ = desc.handle


def test_exec_args_follow_names():
    a = np.arange(4, dtype=np.float32)
    out = np.empty_like(a)
    desc = MemDesc.of(a)
    with (
        eltwise(desc, desc, kind="square") as primitive,
        Memory(desc, a.ctypes.data) as src,
        Memory(desc, out.ctypes.data) as dst,
        Stream() as stream,
    ):
        args, count = primitive.exec_args({"src": src, "dst": dst})
        assert [(e.arg, e.memory) for e in args] == [(1, src.handle), (17, dst.handle)]
        assert count == 2
        primitive.run(stream, {"src": src, "dst": dst})
        with pytest.raises(ValueError, match="eltwise has no argument 'bias'"):
            primitive.exec_args({"bias": src})
        with pytest.raises(ValueError, match="argument 'src' needs 16 bytes"):
            execute(primitive, {"src": a[:2], "dst": out})
        assert "eltwise" in repr(primitive)
        assert primitive.impl
    np.testing.assert_array_equal(out, a * a)


def test_attributes_are_values():
    operand = MemDesc((1, 8, 1, 1), "f32")
    one = Attr().relu().binary("add", operand).scales("weights", 1)
    same = Attr().relu().binary("add", MemDesc((1, 8, 1, 1), "f32")).scales("weights", 1)
    assert one == same
    assert hash(one) == hash(same)
    assert one.extra_args() == {"binary_0": 32768 * 2 | 2, "scales_weights": 4096 | 33}


def test_native_addresses_are_given():
    assert api.address("dnnl_primitive_execute") > 0
    assert api.address("dnnl_memory_set_data_handle") > 0


@pytest.mark.parametrize(("first", "second"), [(2, 1), (4, 2), (1, 2)])
def test_an_equal_primitive_for_other_threads_keeps_to_its_scratch_memory(first, second):
    """The library's cache goes by the threads set when code is asked for, which may be long after the description."""
    x = np.random.default_rng(first).standard_normal((2, 32, 9, 11 + second)).astype(np.float32)
    beyond = 1 << 16

    def pooled(threads):
        with use_threads(threads):
            src, dst = MemDesc(x.shape, "f32"), MemDesc((2, 32, 1, 1), "f32", "any")
            options = {"strides": x.shape[2:], "pads_begin": (0, 0), "pads_end": (0, 0)}
            made = pooling(src, dst, kind="avg_exclude_padding", kernel=x.shape[2:], **options)
        with use_threads(first):
            made.handle  # noqa: B018 - made here
        return made

    with pooled(first), pooled(second) as primitive:
        whole = aligned_empty(primitive.scratchpad_size + beyond)
        whole[:] = 7
        out = np.empty((2, 32, 1, 1), np.float32)
        given = {"src": x, "dst": out} | ({"scratchpad": whole} if primitive.scratchpad_size else {})
        with use_threads(second):
            execute(primitive, given)
        assert (whole[primitive.scratchpad_size :] == 7).all()
        np.testing.assert_allclose(
            unpack(out, primitive.args["dst"]), x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6
        )


def test_primitive_cache_is_bounded():
    import ctypes

    engine()
    out = ctypes.c_int()
    api.lib().dnnl_get_primitive_cache_capacity(ctypes.byref(out))
    assert 0 < out.value <= 1024


FORK = """
import os, threading
import numpy as np
from pyflame_rt.backends.cpu.onednn import MemDesc, execute, generation, live_handles, on_fork, pack
called = []
on_fork(lambda: called.append(generation()))
a = np.arange(12, dtype=np.float32).reshape(3, 4)
old = MemDesc((3, 4), "f32", "ba")
pack(a, old)
pid = os.fork()
if pid == 0:
    assert live_handles() == 0 and generation() == 1 and called == [1]
    del old  # of the parent: dropped, not freed
    def work():
        fresh = MemDesc((3, 4), "f32", "ba")
        assert (pack(a, fresh).view(np.float32).reshape(4, 3) == a.T).all()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(120)
    os._exit(0 if live_handles() == 0 and not thread.is_alive() else 1)
print(os.waitpid(pid, 0)[1], live_handles(), generation(), called)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_starts_anew():
    env = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout.split() == ["0", "1", "0", "[]"], done.stderr


def test_generation_of_this_process_is_stable():
    assert generation() == generation()
    assert aligned_empty(10).shape == (10,)
