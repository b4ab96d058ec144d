"""Object code is loaded wherever there is room in the address space."""

import ctypes
import math
import os
import random
import subprocess
import sys

import pytest

from pyflame_rt.backends.cpu.jit import object_loader as loader
from pyflame_rt.backends.cpu.jit.codegen import FULL, QUICK, object_code
from pyflame_rt.graph.errors import BackendError

HERE = pytest.mark.skipif(not loader._OURS, reason="LLVM's loader is used on this system")
# A constant, a function of this module and one of another.
CALLING = """
declare double @atan2(double, double)

define internal double @half(double %x) nounwind noinline {
  %y = fmul double %x, 0.5
  ret double %y
}

define void @calling(ptr %p) nounwind {
  %x = load double, ptr %p
  %h = call double @half(double %x)
  %y = call double @atan2(double %h, double 3.25)
  store double %y, ptr %p
  ret void
}
"""

# Single free pages above more than 2 GB that are taken: constants fit into a page, code does not, and code reaches its
# constants through 32 bits. The mappings are never touched, so they cost no memory.
CROWDED = """
import ctypes, mmap
from pyflame_rt.backends.cpu.jit import compiler as jit

def taken(size):
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)

def function(name):
    sums = [f"  %x{k + 1} = fadd float %x{k}, {k + 0.5}" for k in range(700)]
    lines = [f"define void @{name}(ptr %p) nounwind {{", "  %x0 = load float, ptr %p", *sums]
    return "\\n".join([*lines, "  store float %x700, ptr %p", "  ret void", "}"])

jit.start()
page = mmap.PAGESIZE
between = [taken(size * page) for size in (256, 64, 16, 8, 4, 3, 2) for _ in range(1500)]  # fills the gaps there are
holes = []
for _ in range(200):
    holes.append(taken(page))
    between.append(taken(page))
between.append(taken(3 << 30))
for hole in holes:
    hole.close()
for k in range(12):
    value = ctypes.c_float(1.0)
    with jit.compiling(quick=bool(k % 2)):
        address = jit.address_of(f"crowded{k}", function(f"crowded{k}"))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(value))
    assert value.value == 1.0 + sum(k + 0.5 for k in range(700)), value
jit.settle()
print("loaded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the addresses that Linux chooses")
def test_sections_of_an_object_lie_near_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PYFLAME_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=250)
    assert done.stdout == "loaded\n", done.stderr[-2000:]


@pytest.mark.parametrize("loading", [pytest.param(loader.place, marks=HERE), lambda c, n: loader._link(c, n, FULL)])
@pytest.mark.parametrize("level", [FULL, QUICK])
def test_code_reaches_constants_and_functions(loading, level):
    name = f"calling{level}"
    (address,) = loading([object_code(CALLING.replace("@calling", f"@{name}"), level)], [name])
    value = ctypes.c_double(5.0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(value))
    assert value.value == math.atan2(2.5, 3.25)


@HERE
def test_objects_that_come_together_share_pages_and_jumps():
    codes = [object_code(CALLING.replace("3.25", f"{k}.5")) for k in range(5)]
    addresses = loader.place(codes, ["calling"] * 5)
    for k, address in enumerate(addresses):
        value = ctypes.c_double(5.0)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(value))
        assert value.value == math.atan2(2.5, k + 0.5)
    assert max(addresses) - min(addresses) < 4096


@HERE
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_code_of_its_parent_alone():
    """Both have the same free pages, and load there what is not the same."""
    codes = [object_code(CALLING.replace("3.25", f"{k}.5")) for k in range(3)]
    loader.place(codes[:1], ["calling"])
    before, after = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(before[0], 1)
        loader.place(codes[2:], ["calling"])
        os.write(after[1], b"!")
        os._exit(0)
    (address,) = loader.place(codes[1:2], ["calling"])
    os.write(before[1], b"!")
    os.read(after[0], 1)
    os.waitpid(child, 0)
    value = ctypes.c_double(5.0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(value))
    assert value.value == math.atan2(2.5, 1.5)


@HERE
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@seen = global i64 3\ndefine i64 @f() { %x = load i64, ptr @seen\n ret i64 %x }", "written to"),
        ("declare void @no_such_function()\ndefine void @f() { call void @no_such_function()\n ret void }", "not have"),
        ("define void @g() { ret void }", "no function f"),
        ("@environ = external global i64\ndefine i64 @f() { %x = load i64, ptr @environ\n ret i64 %x }", "in a way"),
    ],
)
def test_what_generated_code_never_does_is_an_error(text, message):
    with pytest.raises(BackendError, match=message):
        loader.place([object_code(text)], ["f"])


@HERE
def test_damaged_objects_are_errors():
    code = object_code(CALLING)
    for size in range(0, len(code), 7):
        with pytest.raises(BackendError):
            loader.place([code[:size]], ["calling"])
    chance = random.Random(3)
    refused = 0
    for _ in range(400):
        damaged = bytearray(code)
        damaged[chance.randrange(len(code))] = chance.randrange(256)
        try:
            loader.place([bytes(damaged)], ["calling"])
        except BackendError:
            refused += 1
    assert refused > 10
