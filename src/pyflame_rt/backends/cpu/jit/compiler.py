"""Compile kernels for this machine; keep addresses for the life of the process, object code on disk.

Object code holds no address: a kernel gets its operands through pointers, the driver its functions through the plan.
Each structure of kernel is an entry of its own, so models share them.

Code comes in two forms that compute the same bits. The first answer waits only for the quick form, which takes LLVM a
quarter of the time; the full form is made in the background, and its address is written wherever the other's is.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import sys
import threading
import weakref
import zlib
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import c_int64, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from pyflame_rt.backends.cpu.ir.builder import briefly
from pyflame_rt.backends.cpu.ir.kernel_program import FillKernel, GatherKernel, RowKernel, TransposeKernel
from pyflame_rt.backends.cpu.jit import codegen
from pyflame_rt.backends.cpu.jit.codegen import FULL, QUICK, object_code
from pyflame_rt.backends.cpu.jit.object_loader import load
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.jit.thread_pool import HELPERS, PoolTask, ThreadPool, do_all
from pyflame_rt.backends.cpu.kernels.copies import emit_fill, emit_gather, emit_transpose
from pyflame_rt.backends.cpu.kernels.row_loops import emit_rows
from pyflame_rt.backends.cpu.run.threads import available_threads
from pyflame_rt.cache.signature import code_signature
from pyflame_rt.cache.store import Store, current_store
from pyflame_rt.graph.locks import hold_while_forking
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyflame_rt.backends.cpu.ir.kernel_program import Kernel

__all__ = [
    "address_of",
    "call",
    "compile_kernels",
    "compiling",
    "follow",
    "kernel_ir",
    "object_code",
    "own_address",
    "prepare",
    "prepare_text",
    "settle",
    "start",
    "unfinished",
    "unfollow",
]

_DECLARATION = re.compile(r"^declare.*$", re.MULTILINE)
log = logging.getLogger("pyflame_rt")
_lock = threading.RLock()  # of everything below; nobody compiles or waits while holding it
hold_while_forking(_lock)
_addresses: dict[str, int] = {}
_making: dict[str, _Making] = {}  # being compiled, or compiled and not loaded yet
_unfinished: dict[str, _Unfinished] = {}  # loaded in the quick form
_followers: dict[int, list[tuple[weakref.ref[Any], int]]] = {}  # quick address -> where it was written
_better: dict[int, int] = {}  # quick address -> the full form's


# From when the first answers are out, and as urgent as runs, which would hold up threads of low priority for long.
_finishers = ThreadPool("pyflame-finish", lambda: min(available_threads(), 2), delay=0.25)


class _Mode(NamedTuple):
    quick: bool
    ahead: bool


_USUAL = _Mode(quick=True, ahead=False)
_mode: ContextVar[_Mode] = ContextVar("compiling", default=_USUAL)


@contextmanager
def compiling(*, quick: bool | None = None, ahead: bool | None = None) -> Iterator[None]:
    """Kernels asked for inside are compiled so.

    Args:
        quick: the quick form will do for now; ``PYFLAME_QUICK_START=0`` overrides it.
        ahead: `prepare` begins at once.
    """
    mode = _mode.get()
    token = _mode.set(_Mode(mode.quick if quick is None else quick, mode.ahead if ahead is None else ahead))
    try:
        yield
    finally:
        _mode.reset(token)


def _quick() -> bool:
    return _mode.get().quick and os.environ.get("PYFLAME_QUICK_START", "1") != "0"


# ---------------------------------------------------------------------- loading


def start() -> None:
    """Get LLVM ready to compile code."""
    codegen.start()


def _load(codes: Sequence[bytes], names: Sequence[str], level: int) -> list[int]:
    """Make object code executable; addresses of the functions named, which must be new to the process in that form."""
    with _lock:
        return load(codes, names, level)


# ---------------------------------------------------------------------- compiling


@cache
def _build() -> str:
    """Everything object code depends on besides its IR."""
    machine = host()
    made_by = f"llvmlite {llvmlite.__version__} llvm {llvm.llvm_version_info} {llvm.get_process_triple()}"
    return f"{made_by} {machine} {code_signature('backends/cpu')}"


class _Text:
    """IR that is written, or unpacked, when first asked for: nobody waits for another who does that, and may fork."""

    def __init__(self, make: Callable[[], str], text: str | None = None) -> None:
        self._make, self.text = make, text

    def __call__(self) -> str:
        text = self.text
        if text is None:
            text = self.text = self._make()
        return text


@dataclass(frozen=True)
class _Making:
    """A function on its way: ``task`` gives its object code, ``ir`` what the full form of a quick one is made from."""

    name: str
    level: int
    task: PoolTask[bytes]
    ir: _Text
    store: Store
    entry: str


def _make(key: str, name: str, emit: Callable[[], str]) -> _Making | None:
    """Have a function compiled: None where it is loaded already. Object code comes from the store if it is there."""
    quick = _quick()
    with _lock:
        if key in _addresses:
            return None
        made = _making.get(key)
        if made is None or (made.level == QUICK and not quick):
            made = _making[key] = _begin(name, f"{_build()} {key}", emit, quick=quick)
        return made


def _begin(name: str, entry: str, emit: Callable[[], str], *, quick: bool) -> _Making:
    store = current_store()
    code = store.get("object", entry)
    if code is not None:
        return _Making(name, FULL, PoolTask(lambda: code), _Text(str), store, entry)
    draft = _read_draft(store.get("draft", entry))
    if draft is not None and quick:
        return _Making(name, QUICK, PoolTask(lambda: draft[0]), _Text(draft[1]), store, entry)
    full = _Text(emit if draft is None else draft[1])
    if quick:
        ir, full = _brief_form(emit)
        task = PoolTask(lambda: _compile(ir, QUICK, store, entry, full))
    else:
        ir = full()
        task = PoolTask(lambda: _compile(ir, FULL, store, entry, full))
    HELPERS.submit(task)
    return _Making(name, QUICK if quick else FULL, task, full, store, entry)


def _brief_form(emit: Callable[[], str]) -> tuple[str, _Text]:
    """IR that is soon compiled, and what gives that of the full form: the same where nothing was shortened."""
    with briefly() as brevity:
        ir = emit()
    return ir, _Text(emit, None if brevity.heeded else ir)


def _compile(ir: str, level: int, store: Store, entry: str, full: _Text) -> bytes:
    code = object_code(ir, level)
    if level == FULL:
        store.later("object", entry, code)
    else:
        store.later("draft", entry, lambda: _draft(code, full()), unless="object")
    return code


def _draft(code: bytes, ir: str) -> bytes:
    """Quick code, and what the full form is made from."""
    return len(code).to_bytes(8, "little") + code + zlib.compress(ir.encode(), 1)


def _read_draft(data: bytes | None) -> tuple[bytes, Callable[[], str]] | None:
    if data is None:
        return None
    end = 8 + int.from_bytes(data[:8], "little")
    return data[8:end], lambda: zlib.decompress(data[end:]).decode()


def _loaded(wanted: dict[str, tuple[str, Callable[[], str]]]) -> None:
    """Load functions, given as key -> name and what emits the IR; returns when all of them have addresses."""
    making = {key: made for key, (name, emit) in wanted.items() if (made := _make(key, name, emit)) is not None}
    try:
        codes = dict(zip(making, do_all([made.task for made in making.values()]), strict=True))
    except Exception:
        _forget_failed(making)
        raise
    with _lock:
        for level in (FULL, QUICK):
            fresh = {k: m for k, m in making.items() if m.level == level and k not in _addresses}
            if fresh:
                found = _load([codes[key] for key in fresh], [made.name for made in fresh.values()], level)
                _addresses.update(zip(fresh, found, strict=True))
            if level == QUICK:
                for key, made in fresh.items():
                    _finish_later(key, made)
        for key in making:
            _making.pop(key, None)
    if not _quick():
        _resume()
        for left in [left for key in wanted if (left := _unfinished.get(key)) is not None]:
            left.task.result()


def _forget_failed(making: dict[str, _Making]) -> None:
    """Whoever asks next tries again: memory may have been short."""
    with _lock:
        for key, made in making.items():
            if made.task.failed and _making.get(key) is made:
                del _making[key]


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
    seen: set[str] = set()
    for line in _DECLARATION.findall(module):
        if line in seen:
            break
        seen.add(line)
    else:
        return module
    lines = module.splitlines()
    declared = dict.fromkeys(line for line in lines if line.startswith("declare"))
    return "\n".join([*declared, *(line for line in lines if line not in declared)]) + "\n"


def _emitter(kernel: Kernel) -> tuple[str, Callable[[], str]]:
    name = symbol(kernel.key)
    return name, lambda: kernel_ir(kernel, name)


def prepare(kernel: Kernel) -> None:
    """A kernel will be needed: begin to compile it, where that can be done besides."""
    if _mode.get().ahead and kernel.key not in _addresses:
        _make(kernel.key, *_emitter(kernel))


def prepare_text(name: str, emit: Callable[[], str]) -> None:
    """The same of a function of this package's own, as `own_address` knows it."""
    if _mode.get().ahead:
        _make(_own_key(name), name, emit)


def compile_kernels(kernels: Sequence[Kernel]) -> list[int]:
    """Addresses of kernels; each structure is made once in a process. Safe from any thread."""
    _loaded({kernel.key: _emitter(kernel) for kernel in kernels if kernel.key not in _addresses or not _quick()})
    with _lock:
        return [_addresses[kernel.key] for kernel in kernels]


def call(kernel: Kernel, buffers: Sequence[int], params: Sequence[int], begin: int, end: int) -> None:
    """Run a kernel once, outside any plan, on this thread: addresses of its operands, its params, its rows."""
    entry = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_int64, c_int64)(compile_kernels([kernel])[0])
    entry((c_void_p * len(buffers))(*buffers), (c_int64 * max(1, len(params)))(*params), begin, end)


def _own_key(name: str) -> str:
    """What the text of a function of ours depends on besides the processor and our code."""
    return f"{name} {sys.version} {np.__version__}"


def own_address(name: str, emit: Callable[[], str]) -> int:
    """Address of a function of this package's own; its IR is asked for only where it is not in the store."""
    key = _own_key(name)
    _loaded({key: (name, emit)})
    with _lock:
        return _addresses[key]


def address_of(name: str, ir: str) -> int:
    """Address of a function of hand-written IR, compiled once for each text; `name` must be unique to it."""
    key = hashlib.sha256(ir.encode()).hexdigest()
    _loaded({key: (name, lambda: ir)})
    with _lock:
        return _addresses[key]


# ---------------------------------------------------------------------- the full form


class _Unfinished(NamedTuple):
    made: _Making
    task: PoolTask[None]


def _finish_later(key: str, made: _Making) -> None:
    task = PoolTask(lambda: _finish(key, made))
    _unfinished[key] = _Unfinished(made, task)
    _finishers.submit(task)


def _finish(key: str, made: _Making) -> None:
    """Compile the full form and put it in the place of the quick one."""
    try:
        code = object_code(made.ir())
        with _lock:
            old, (new,) = _addresses[key], _load([code], [made.name], FULL)
            _addresses[key] = _better[old] = new
            _unfinished.pop(key, None)
            for owner, slot in _followers.pop(old, ()):
                _write(owner, slot, new)
    except Exception:
        log.warning("the full form of a kernel could not be compiled; its quick form stays", exc_info=True)
        _unfinished.pop(key, None)
        return
    if made.store.put("object", made.entry, code):
        made.store.discard("draft", made.entry)


def _write(owner: weakref.ref[Any], slot: int, address: int) -> None:
    alive = owner()
    if alive is not None:
        c_void_p.from_address(slot).value = address
    del alive


def follow(address: int, slot: int, owner: Any) -> None:
    """The address of a function was written to memory of ``owner``: write the better one there when there is one.

    The memory must be there as long as the owner is, or until `unfollow`.
    """
    if not _unfinished and address not in _better:
        return
    _resume()
    with _lock:
        if address in _better:
            _write(weakref.ref(owner), slot, _better[address])
        elif any(_addresses[key] == address for key in _unfinished):
            _followers.setdefault(address, []).append((weakref.ref(owner), slot))


def unfollow(owner: Any) -> None:
    """Write to memory of the owner no more."""
    with _lock:
        for address, found in list(_followers.items()):
            _followers[address] = [(who, slot) for who, slot in found if who() is not owner and who() is not None]


def unfinished(key: str) -> bool:
    """Whether the kernel of that key runs in its quick form."""
    return key in _unfinished


def settle() -> None:
    """Wait until every function has its full form."""
    _resume()
    _finishers.wait()


_forked = False  # and nobody goes on with what was unfinished


def _after_fork() -> None:
    """In the child: what other threads were making is not made; what waits for its full form waits for `_resume`."""
    global _forked
    _making.clear()
    _forked = bool(_unfinished)


def _resume() -> None:
    """Go on in a forked child with what the parent's threads had to do, now that kernels are used here too."""
    global _forked
    with _lock:
        if _forked:
            _forked = False
            for key, left in list(_unfinished.items()):
                _finish_later(key, left.made)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
