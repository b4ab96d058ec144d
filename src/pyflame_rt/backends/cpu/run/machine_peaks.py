"""What this machine reaches at most: arithmetic in registers, and memory read and written in order.

Profiles compare kernels with these figures. They are measured once for a machine and number of threads (a tenth of a
second) and kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from contextlib import suppress
from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyflame_rt.backends.cpu.driver.native_driver import NativePlan, NativeStep, StepKind, openmp, run
from pyflame_rt.backends.cpu.ir.builder import Builder, Lanes, V
from pyflame_rt.backends.cpu.jit.compiler import address_of, compiling
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.kernels.row_loops import SIGNATURE
from pyflame_rt.backends.cpu.run.fork_safety import call_native
from pyflame_rt.cache.notes import note_path, read_note, write_note

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["machine_peaks", "measure_peaks"]

_CHAINS = 12  # independent additions in flight: more than latency times throughput of any core
_TURNS = 200_000
_COPIED = 64 * 2**20  # beyond every cache
_ROUNDS = 5

_known: dict[int, dict[str, float]] = {}


def machine_peaks(threads: int) -> dict[str, float]:
    """Peaks with ``threads`` threads: ``gflops`` (float32) and ``gb_per_s`` (read and written).

    Example:
        >>> peaks = machine_peaks(1)
        >>> peaks["gflops"] > 0.1, peaks["gb_per_s"] > 0.1
        (True, True)
    """
    if threads not in _known:
        stored = _read()
        key = f"{_machine()}-{threads}"
        if key not in stored:
            stored[key] = measure_peaks(threads)
            _write(stored)
        _known[threads] = stored[key]
    return dict(_known[threads])


def measure_peaks(threads: int) -> dict[str, float]:
    """Measure now."""
    return call_native(lambda: {"gflops": _arithmetic(threads), "gb_per_s": _streaming(threads)})


def _machine() -> str:
    name = f"{host().cpu} {host().features} {os.cpu_count()} {_model_name()}"
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _model_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line
    return ""


def _read() -> dict[str, dict[str, float]]:
    """What earlier processes measured; anything that does not look like it is left out."""
    path = note_path("peaks")
    stored = {} if path is None else read_note(path)
    return {k: v for k, v in stored.items() if _plausible(v)}


def _plausible(peaks: Any) -> bool:
    return isinstance(peaks, dict) and all(
        isinstance(peaks.get(name), (int, float)) and peaks[name] > 0 for name in ("gflops", "gb_per_s")
    )


def _write(stored: dict[str, dict[str, float]]) -> None:
    """Keep the figures; a folder that cannot be written is no error."""
    path = note_path("peaks")
    if path is not None:
        write_note(path, stored)


# ---------------------------------------------------------------------- kernels


def _arithmetic(threads: int) -> float:
    """Thousands of millions of float32 operations a second."""
    sink = np.zeros((max(threads, 1), host().vector_bytes // 4), np.float32)
    call, keep = _kernel("pyflame_peak_fma", _fma_ir, [sink], [_TURNS], threads)
    done = 2 * _CHAINS * _TURNS * sink.size
    seconds = _best(call)
    del keep
    return round(done / seconds / 1e9, 3)


def _streaming(threads: int) -> float:
    """Thousands of millions of bytes a second, read and written."""
    source, target = (np.full(_COPIED, k, np.uint8) for k in (1, 2))
    call, keep = _kernel("pyflame_peak_copy", _copy_ir, [target, source], [_COPIED // max(threads, 1)], threads)
    seconds = _best(call)
    del keep
    return round(2 * _COPIED / seconds / 1e9, 3)


def _kernel(
    name: str, ir: Callable[[str], str], arrays: list[Any], params: list[int], threads: int
) -> tuple[Callable[[], None], list[Any]]:
    """A call of the driver with one step of ``threads`` rows, and what must stay alive for it."""
    pointers = (c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    sizes = (c_int64 * len(params))(*params)
    with compiling(quick=False):
        address = address_of(name, ir(name))
    step = (NativeStep * 1)(
        NativeStep(
            StepKind.KERNEL, address, ctypes.addressof(pointers), len(arrays), ctypes.addressof(sizes), threads, 1
        )
    )
    calls = openmp()
    parallel = calls.parallel if threads > 1 and calls.parallel else None
    plan = NativePlan(steps=ctypes.addressof(step), nsteps=1, parallel=parallel, thread_num=calls.thread_num)
    plan.num_threads = threads
    return lambda: _check(run()(ctypes.addressof(plan), None)), [pointers, sizes, step, plan, *arrays]


def _check(status: int) -> None:
    assert status == 0


def _best(call: Callable[[], None]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _fma_ir(name: str) -> str:
    """Each row: so many turns of independent multiply-adds on registers."""
    b = Builder(host())
    b.begin()
    at = Lanes(b, b.host.vector_bytes // 4)
    sink, turns = b.op("load ptr, ptr %bufs"), b.load_i64("%params", 0)
    row, origin = b.label("row"), b.block
    b.jump(row)
    b.place(row)
    r = b.phi("i64", ("%begin", origin))
    loop, done, before = b.label("loop"), b.label("done"), b.block
    b.jump(loop)
    b.place(loop)
    i = b.phi("i64", ("0", before))
    starts = [at.const("float", 1.0 + k) for k in range(_CHAINS)]
    sums = [V(at, "float", b.phi(v.kind, (v.name, before))) for v in starts]
    news = [at.fma(v, 0.5, 0.25) for v in sums]
    following = b.integer(f"add {i}, 1")
    for phi, new in zip(sums, news, strict=True):
        b.add_incoming(phi.name, new.name, b.block)
    b.add_incoming(i, following, b.block)
    b.branch(b.op(f"icmp slt i64 {following}, {turns}"), loop, done)
    b.place(done)
    total = news[0]
    for new in news[1:]:
        total = total + new
    place = b.element(total.kind, sink, r)
    b.do(f"store {total.kind} {total.name}, ptr {place}, align 4")
    after, end = b.integer(f"add {r}, 1"), b.label("end")
    b.add_incoming(r, after, b.block)
    b.branch(b.op(f"icmp slt i64 {after}, %end"), row, end)
    b.place(end)
    b.do("ret void")
    b.end(SIGNATURE.format(name=name))
    return b.text()


def _copy_ir(name: str) -> str:
    """Rows begin to end, of so many bytes each, from the second operand to the first."""
    b = Builder(host())
    b.begin()
    target, source = (b.op(f"load ptr, ptr {b.element('ptr', '%bufs', str(k))}") for k in range(2))
    size = b.load_i64("%params", 0)
    offset, length = b.integer(f"mul %begin, {size}"), b.integer(f"mul {b.integer('sub %end, %begin')}, {size}")
    places = [("ptr", b.element("i8", pointer, offset)) for pointer in (target, source)]
    b.call("void", "llvm.memcpy.p0.p0.i64", [*places, ("i64", length), ("i1", "false")])
    b.do("ret void")
    b.end(SIGNATURE.format(name=name))
    return b.text()
