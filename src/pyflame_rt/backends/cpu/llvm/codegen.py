"""Object code from IR, on several threads at once.

LLVM compiles on any number of threads as long as each has a context and a target machine of its own; llvmlite lets one
thread at a time into the library. Code generation, which is nearly all of the time, goes past that lock.
"""

from __future__ import annotations

import threading
from ctypes import string_at
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from pyflame_rt.backends.cpu.llvm.host import host
from pyflame_rt.graph.locks import hold_while_forking

__all__ = ["FULL", "QUICK", "machine", "object_code", "start"]

FULL, QUICK = 2, 0  # levels of code generation


@cache
def _target() -> llvm.Target:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


def start() -> None:
    """Get LLVM ready for this machine."""
    _target()


def machine(level: int = FULL) -> llvm.TargetMachine:
    """A new target machine for this host."""
    settings = {"opt": level, "reloc": "pic", "codemodel": "default"}
    return _target().create_target_machine(cpu=host().cpu, features=host().features, **settings)


class _Emitter:
    """What one thread at a time compiles with; forks wait for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        hold_while_forking(self.lock)
        self.context: Any = None
        self.machines: dict[int, Any] = {}

    def emit(self, ir: str, level: int) -> bytes:
        self.context = self.context or llvm.create_context()
        if level not in self.machines:
            self.machines[level] = machine(level)
        module = llvm.parse_assembly(ir, self.context)
        try:
            module.verify()
            return _emitted(self.machines[level], module)
        finally:
            module.close()


_emitters = [_Emitter() for _ in range(4)]


def object_code(ir: str, level: int = FULL) -> bytes:
    """Object code of an IR module: parsed, verified, compiled. No passes run: the IR is vectorised as written."""
    emitter = _free_emitter()
    try:
        return emitter.emit(ir, level)
    finally:
        emitter.lock.release()


def _free_emitter() -> _Emitter:
    """An emitter nobody uses, held; where all are in use, the first is waited for."""
    for emitter in _emitters:
        if emitter.lock.acquire(blocking=False):
            return emitter
    _emitters[0].lock.acquire()
    return _emitters[0]


def _emitted(target: Any, module: Any) -> bytes:
    """As llvmlite's ``emit_object``, but other threads may be in the library meanwhile."""
    lib = llvm.ffi.lib
    emit: Any = getattr(lib.LLVMPY_TargetMachineEmitToMemory, "_cfn", lib.LLVMPY_TargetMachineEmitToMemory)
    with llvm.ffi.OutputString() as fault:
        memory = emit(target, module, 1, fault)
        if not memory:
            raise RuntimeError(str(fault))
    try:
        return string_at(lib.LLVMPY_GetBufferStart(memory), lib.LLVMPY_GetBufferSize(memory))
    finally:
        lib.LLVMPY_DisposeMemoryBuffer(memory)
