"""The integer tile for VNNI: its inner loop takes nine tenths of what the ports of a Cascade Lake give (llvm-mca)."""

import re
import shutil
import subprocess

import llvmlite.binding as llvm
import pytest

from pyflame_rt.backends.cpu.jit.target import Host
from pyflame_rt.backends.cpu.kernels.tiles.integer_dots import Dots, integer_tile
from pyflame_rt.backends.cpu.kernels.tiles.integer_products import IntegerKernel

FEATURES = "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512vnni,+avx2,+fma,+f16c"
MACHINE = Host("cascadelake", FEATURES, 64, fma=True, half=True, big_vectors=True, registers=32)
TOOL = next((t for t in ("llvm-mca-19", "llvm-mca") if shutil.which(t)), "")


def inner_loop() -> list[str]:
    """The instructions of the loop that holds most of the products."""
    dots = Dots("vnni", 16)
    text = IntegerKernel("rows", dots, integer_tile(MACHINE, dots, None, 256)).emit("kernel", MACHINE)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=MACHINE.cpu, features=FEATURES, opt=3)
    blocks = re.split(r"^(\.?\w+):.*$", machine.emit_assembly(llvm.parse_assembly(text)), flags=re.MULTILINE)
    loops = []
    for label, body in zip(blocks[1::2], blocks[2::2], strict=True):
        lines = [line.split("#")[0].strip() for line in body.splitlines()]
        ends = [k for k, line in enumerate(lines) if re.match(rf"j\w+\s+{re.escape(label)}$", line)]
        if ends:
            loops.append([line for line in lines[: ends[-1] + 1] if line and not line.startswith(".")])
    return max(loops, key=lambda lines: sum("vpdpbusd" in line for line in lines))


def test_products_are_of_vnni():
    assert sum("vpdpbusd" in line for line in inner_loop()) == 96  # four groups for 6 rows of 4 vectors


@pytest.mark.skipif(not TOOL, reason="llvm-mca is not installed")
def test_the_ports_are_the_limit():
    lines, rounds = inner_loop(), 100
    said = subprocess.run(
        [TOOL, "-mcpu=cascadelake", f"-iterations={rounds}"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    cycles = int(re.search(r"Total Cycles:\s+(\d+)", said)[1]) / rounds
    products = sum("vpdpbusd" in line for line in lines)
    assert cycles <= products / 2 / 0.9  # two ports multiply
