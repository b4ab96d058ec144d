"""The machine kernels are generated for."""

from __future__ import annotations

import os
from functools import cache

import llvmlite.binding as llvm

from pyflame_rt.graph.errors import InputError
from pyflame_rt.graph.records import dataclass

__all__ = ["Host", "host"]


@dataclass(frozen=True)
class Host:
    """What code generation asks about the machine."""

    cpu: str
    features: str
    vector_bytes: int
    fma: bool
    half: bool  # conversions between float16 and float32 are instructions
    big_vectors: bool = False  # 64-byte registers, which LLVM must be told to use
    registers: int = 16  # vector registers

    def lanes(self, widest: int) -> int:
        """Lanes of one vector when the widest element has that many bytes (more than 4 counts as 4)."""
        return self.vector_bytes // min(widest, 4)


# What `PYFLAME_ISA` leaves out: beginnings of the names of instructions a lesser machine does not have.
_LESSER = {
    "avx512": ("avx512vnni", "avx512bf16", "avx512fp16", "avxvnni", "avx10", "amx"),
    "avx2": ("avx512", "avxvnni", "avx10", "amx", "evex512"),
}
_LESSER_CPU = {"avx512": "skylake-avx512", "avx2": "haswell"}


@cache
def host() -> Host:
    """This machine, as LLVM sees it; a lesser one where `PYFLAME_ISA` says so, to see what others get."""
    features = llvm.get_host_cpu_features()
    asked = os.environ.get("PYFLAME_ISA", "")
    if asked not in ("", *_LESSER):
        raise InputError(f"PYFLAME_ISA is {asked!r}: it may be {' or '.join(sorted(_LESSER))}, or not set")
    for name in features:
        features[name] = features[name] and not name.startswith(_LESSER.get(asked, ("none",)))
    has = {name for name, on in features.items() if on}
    arm = llvm.get_process_triple().startswith(("aarch64", "arm64"))
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= has
    size = 64 if wide else 32 if "avx2" in has else 16
    return Host(
        cpu=_LESSER_CPU.get(asked) or llvm.get_host_cpu_name(),
        features=features.flatten(),
        vector_bytes=size,
        fma=arm or "fma" in has,
        half=arm or "f16c" in has,
        big_vectors=wide,
        registers=32 if wide or arm else 16,
    )
