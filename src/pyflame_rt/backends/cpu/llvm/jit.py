"""Compile kernels for this machine and keep them for the life of the process.

Two seams let object code be kept elsewhere: `object_code` (IR to bytes) and `load_object` (bytes to addresses).
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from pyflame_rt.backends.cpu.llvm.copies import emit_fill, emit_gather, emit_transpose
from pyflame_rt.backends.cpu.llvm.emit import emit_rows
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.program import FillKernel, GatherKernel, RowKernel, TransposeKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyflame_rt.backends.cpu.llvm.program import Kernel

__all__ = ["address_of", "call", "compile_kernels", "kernel_ir", "load_object", "object_code"]

_lock = threading.RLock()
_addresses: dict[str, int] = {}


@cache
def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=host().cpu, features=host().features, opt=2, reloc="pic", codemodel="default"
    )


@cache
def _engine() -> llvm.ExecutionEngine:
    machine = _machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    # The engine takes the machine over; code generation keeps one of its own.
    _machine.cache_clear()
    return engine


def object_code(ir: str) -> bytes:
    """Object code of an IR module: parsed, verified, compiled. No passes run: the IR is vectorised as written."""
    with _lock:
        module = llvm.parse_assembly(ir)
        module.verify()
        return _machine().emit_object(module)


def load_object(code: bytes, names: Sequence[str]) -> list[int]:
    """Make object code executable; addresses of the functions named, which must be new to the process."""
    with _lock:
        engine = _engine()
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return [engine.get_function_address(name) for name in names]


def symbol(key: str) -> str:
    """The function name of what is kept under `key`: no two contents share one."""
    return "k" + hashlib.sha256(key.encode()).hexdigest()[:24]


def kernel_ir(kernel: Kernel, name: str) -> str:
    """The IR module of a kernel, its function called `name`."""
    match kernel:
        case RowKernel():
            return emit_rows(kernel, name)
        case TransposeKernel():
            return emit_transpose(kernel, name)
        case GatherKernel():
            return emit_gather(kernel, name)
        case FillKernel():
            return emit_fill(kernel, name)
        case _:
            return kernel.emit(name)


def compile_kernels(kernels: Sequence[Kernel]) -> list[int]:
    """Addresses of kernels; each structure is compiled once in a process, new ones together. Safe from any thread."""
    with _lock:
        missing = {kernel.key: kernel for kernel in kernels if kernel.key not in _addresses}
        if missing:
            names = [symbol(key) for key in missing]
            text = _merge([kernel_ir(kernel, name) for kernel, name in zip(missing.values(), names, strict=True)])
            _addresses.update(zip(missing, load_object(object_code(text), names), strict=True))
        return [_addresses[kernel.key] for kernel in kernels]


def call(kernel: Kernel, buffers: Sequence[int], params: Sequence[int], begin: int, end: int) -> None:
    """Run a kernel once, outside any plan, on this thread: addresses of its operands, its params, its rows."""
    entry = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int64)(compile_kernels([kernel])[0])
    entry((c_void_p * len(buffers))(*buffers), (c_int64 * max(1, len(params)))(*params), begin, end)


def address_of(name: str, ir: str) -> int:
    """Address of a function of hand-written IR, compiled once for each text; `name` must be unique to it."""
    with _lock:
        key = hashlib.sha256(ir.encode()).hexdigest()
        if key not in _addresses:
            _addresses[key] = load_object(object_code(ir), [name])[0]
        return _addresses[key]


def _merge(modules: Sequence[str]) -> str:
    """One module of several: declarations, and helpers private to a module, are kept once."""
    seen: dict[str, None] = {}
    for module in modules:
        for part in _parts(module):
            seen.setdefault(part)
    return "\n".join(seen) + "\n"


def _parts(module: str) -> list[str]:
    """The top-level pieces of a module: declarations and whole functions."""
    pieces: list[str] = []
    lines: list[str] = []
    for line in module.splitlines():
        lines.append(line)
        if line.startswith("declare") or line == "}":
            pieces.append("\n".join(lines))
            lines = []
    return pieces
