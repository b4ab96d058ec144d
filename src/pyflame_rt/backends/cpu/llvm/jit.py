"""Compile kernels for this machine; keep addresses for the life of the process, object code on disk.

Object code holds no address: a kernel gets its operands through pointers, the driver its functions through the plan.
Each structure of kernel is an entry of its own, so models share them.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING

import llvmlite
import llvmlite.binding as llvm

from pyflame_rt.backends.cpu.llvm.copies import emit_fill, emit_gather, emit_transpose
from pyflame_rt.backends.cpu.llvm.emit import emit_rows
from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.backends.cpu.llvm.program import FillKernel, GatherKernel, RowKernel, TransposeKernel
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import current_store
from pyflame_rt.graph.locks import hold_while_forking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyflame_rt.backends.cpu.llvm.program import Kernel

__all__ = ["address_of", "call", "compile_kernels", "kernel_ir", "load_object", "object_code", "start"]

_lock = threading.RLock()
hold_while_forking(_lock)
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


def start() -> None:
    """Get LLVM ready to load code."""
    with _lock:
        _engine()


def object_code(ir: str) -> bytes:
    """Object code of an IR module: parsed, verified, compiled. No passes run: the IR is vectorised as written."""
    with _lock:
        module = llvm.parse_assembly(ir)
        module.verify()
        return _machine().emit_object(module)


def load_object(code: bytes, names: Sequence[str]) -> list[int]:
    """Make object code executable; addresses of the functions named, which must be new to the process."""
    return _load([code], names)


def _load(codes: Sequence[bytes], names: Sequence[str]) -> list[int]:
    with _lock:
        engine = _engine()
        for code in codes:
            engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return [engine.get_function_address(name) for name in names]


@cache
def _build() -> str:
    """Everything object code depends on besides its IR."""
    machine = host()
    made_by = f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info} {llvm.get_process_triple()}"
    return f"{made_by} {machine} {code_signature('backends/cpu')}"


def _compiled(wanted: Mapping[str, str], emit: Callable[[str], str]) -> dict[str, int]:
    """Addresses of functions, by key: object code from the store, or compiled now and kept there.

    Args:
        wanted: key -> name of the function.
        emit: gives the IR module for a key.
    """
    store, codes = current_store(), []
    for key in wanted:
        entry = f"{_build()} {key}"
        code = store.get("object", entry)
        if code is None:
            code = object_code(emit(key))
            store.later("object", entry, code)
        codes.append(code)
    return dict(zip(wanted, _load(codes, list(wanted.values())), strict=True))


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
            return _declared_once(kernel.emit(name))


def _declared_once(module: str) -> str:
    """A module of several, in which a function both use is declared once."""
    lines = module.splitlines()
    declared = dict.fromkeys(line for line in lines if line.startswith("declare"))
    return "\n".join([*declared, *(line for line in lines if line not in declared)]) + "\n"


def compile_kernels(kernels: Sequence[Kernel]) -> list[int]:
    """Addresses of kernels; each structure is made once in a process. Safe from any thread."""
    with _lock:
        missing = {kernel.key: kernel for kernel in kernels if kernel.key not in _addresses}
        if missing:
            names = {key: symbol(key) for key in missing}
            _addresses.update(_compiled(names, lambda key: kernel_ir(missing[key], names[key])))
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
            _addresses.update(_compiled({key: name}, lambda _: ir))
        return _addresses[key]
