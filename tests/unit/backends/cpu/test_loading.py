"""Object code is loaded wherever there is room in the address space."""

import subprocess
import sys

import pytest

# Single free pages above more than 2 GB that are taken: constants fit into a page, code does not, and code reaches its
# constants through 32 bits. The mappings are never touched, so they cost no memory.
CROWDED = """
import ctypes, mmap
from pyflame_rt.backends.cpu.llvm import jit

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
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "loaded\n", done.stderr[-2000:]
