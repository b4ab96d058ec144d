"""Object code from IR, on several threads at once.

LLVM compiles on any number of threads as long as each has a context and a target machine of its own; llvmlite lets one
thread at a time into the library. What takes time goes past that lock.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_size_t, c_void_p, string_at
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm

from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.graph.locks import hold_while_forking

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class _ObjectEmitter:
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
        return _emitted(self.context, self.machines[level], ir)


_emitters = [_ObjectEmitter() for _ in range(4)]


def object_code(ir: str, level: int = FULL) -> bytes:
    """Object code of an IR module: parsed, verified, compiled. No passes run: the IR is vectorised as written."""
    emitter = _free_emitter()
    try:
        return emitter.emit(ir, level)
    finally:
        emitter.lock.release()


def _free_emitter() -> _ObjectEmitter:
    """An emitter nobody uses, held; where all are in use, the first is waited for."""
    for emitter in _emitters:
        if emitter.lock.acquire(blocking=False):
            return emitter
    _emitters[0].lock.acquire()
    return _emitters[0]


class _Library(NamedTuple):
    """Functions of llvmlite's library past its lock."""

    parse: Any
    verify: Any
    emit: Any
    # Those that take next to no time keep the interpreter: giving it up would mean to wait for it.
    start: Any
    size: Any
    free_memory: Any
    free_module: Any
    free_text: Any


@cache
def _library() -> _Library:
    lib, brief = llvm.ffi.lib, ctypes.PyDLL(None, handle=llvm.ffi.lib._handle)

    def long(name: str) -> Any:
        found = getattr(lib, f"LLVMPY_{name}")
        return getattr(found, "_cfn", found)

    def short(name: str, result: Any = None) -> Any:
        found = getattr(brief, f"LLVMPY_{name}")
        found.argtypes, found.restype = [c_void_p], result
        return found

    return _Library(
        parse=long("ParseAssembly"),
        verify=long("VerifyModule"),
        emit=long("TargetMachineEmitToMemory"),
        start=short("GetBufferStart", c_void_p),
        size=short("GetBufferSize", c_size_t),
        free_memory=short("DisposeMemoryBuffer"),
        free_module=short("DisposeModule"),
        free_text=short("DisposeString"),
    )


def _emitted(context: Any, target: Any, ir: str) -> bytes:
    """What llvmlite does when it parses, verifies and emits; other threads may be in the library meanwhile."""
    lib = _library()
    with _fault() as fault:
        module = lib.parse(context, ir.encode(), byref(fault))
        if fault:
            raise RuntimeError(f"LLVM IR parsing error\n{_text(fault)}")
    try:
        with _fault() as fault:
            if lib.verify(module, byref(fault)):
                raise RuntimeError(_text(fault))
        with _fault() as fault:
            memory = lib.emit(target, module, 1, byref(fault))
            if not memory:
                raise RuntimeError(_text(fault))
        try:
            return string_at(lib.start(memory), lib.size(memory))
        finally:
            lib.free_memory(memory)
    finally:
        lib.free_module(module)


@contextmanager
def _fault() -> Iterator[c_char_p]:
    """Where the library may put a message, which is freed at the end."""
    text = c_char_p()
    try:
        yield text
    finally:
        if text:
            _library().free_text(text)


def _text(fault: c_char_p) -> str:
    return (fault.value or b"").decode(errors="replace")
