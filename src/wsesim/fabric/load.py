"""From an elaborated program to a machine that is ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim import watch
from wsesim.csl.sema.types import EnumType, FloatType, IntType, SimpleType, size_of
from wsesim.fabric.codegen.python_source import Code, compile_program
from wsesim.fabric.dsd import from_const
from wsesim.fabric.errors import HostError, MemoryOverflow, TaskClash
from wsesim.fabric.machine import Machine
from wsesim.fabric.memory import MEMORY_BYTES
from wsesim.fabric.pe import PE, TEARDOWN_TASK, LocalTask, Options
from wsesim.fabric.stream import Fifo
from wsesim.fabric.timing import TIMING, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.program.elaborated import PeProgram, Program, TaskBinding
    from wsesim.csl.program.typed_tree import OpOptions
    from wsesim.csl.sema.types import Type
    from wsesim.fabric.codegen.python_source import Compiled

__all__ = ["load"]


def load(
    program: Program,
    *,
    timing: Timing = TIMING,
    bounded: bool = True,
    strict: bool = False,
    traced: bool = False,
    max_cycles: int = 0,
) -> Machine:
    """A machine with the program in place, at cycle 0.

    Args:
        program: what elaboration yields.
        timing: constants of the cycle model.
        bounded: queues have their documented depth; False lets them grow, which hides deadlocks.
        strict: two operations on one queue at once, and the like, are errors.
        traced: keep a timeline of tasks.
        max_cycles: stop a program that runs so long without a word to or from the host; 0 never.

    Raises:
        LoadError: the program does not fit the machine.
    """
    machine = Machine(program, timing=timing, bounded=bounded, strict=strict, traced=traced, max_cycles=max_cycles)
    codes: list[Code] = []
    for number, unit in enumerate(program.programs):
        watch.poll()
        if unit.memory.total > MEMORY_BYTES or len(unit.memory_image) > MEMORY_BYTES:
            need = max(unit.memory.total, len(unit.memory_image))
            raise MemoryOverflow(f"{unit.file} needs {need} bytes of memory, a PE has {MEMORY_BYTES}")
        codes.append(compile_program(unit, timing, f"{number} {unit.file}", machine.arch_index, strict=strict))
    rows = _memories(program)
    for (x, y), number in sorted(program.tiles.items(), key=lambda item: (item[0][1], item[0][0])):
        watch.poll()
        unit = program.programs[number]
        pe = PE(machine, x, y, unit, rows[number].pop(), codes[number].bounds)
        machine.pes[(x, y)] = pe
        machine.host_colors.update(int(c) for c in unit.library_state.get("memcpy.d2h", ()))
        _prepare(pe, unit, codes[number])
    machine.codes = codes
    for pe in machine.pes.values():
        for number in pe.program.initially_active:
            pe.activate(number, 0.0)
    return machine


def _memories(program: Program) -> list[list[np.ndarray[Any, np.dtype[np.uint8]]]]:
    """One array per PE program, a row per PE, each filled with the program's initial image."""
    counts = [0] * len(program.programs)
    for number in program.tiles.values():
        counts[number] += 1
    out: list[list[Any]] = []
    for unit, count in zip(program.programs, counts, strict=True):
        block = np.zeros((count, MEMORY_BYTES), np.uint8)
        image = np.frombuffer(unit.memory_image, np.uint8)
        block[:, : len(image)] = image
        out.append(list(block)[::-1])
    return out


def _prepare(pe: PE, unit: PeProgram, code: Code) -> None:
    pe.code = code
    pe.sp = MEMORY_BYTES - max(unit.memory.stack, 0)
    for queue in unit.queues:
        if queue.color is not None:
            (pe.in_colors if queue.direction == "input" else pe.out_colors)[queue.id] = queue.color
    for queue_id, color in pe.in_colors.items():
        pe.box(color, queue_id)
    for name, item in unit.globals.items():
        if item.storage == "object":
            pe.objects[name] = [None if d is None else from_const(d, unit.globals, code.bounds) for d in item.objects]
    for fifo in unit.fifos:
        _add_fifo(pe, unit, fifo)
    for loaded in unit.dsr_loads:
        pe.dsrs[(loaded.file, loaded.id)] = (
            from_const(loaded.dsd, unit.globals, code.bounds),
            constant_options(loaded.options),
        )
    for binding in unit.tasks:
        _bind(pe, binding, code.functions[binding.function])
    if unit.teardown_handlers:
        _bind_teardown(pe, unit, code)
    for kind, number in unit.initially_blocked:
        pe.block(kind, number)
    for kind, number in unit.initially_unblocked:
        pe.unblock(kind, number, 0.0)


def _add_fifo(pe: PE, unit: PeProgram, fifo: Any) -> None:
    buffer = unit.globals.get(fifo.buffer)
    size = size_of(fifo.elem)
    dtype = np.dtype(np.uint16 if size == 2 else np.uint32)
    if buffer is None:  # no code uses it, so it has no place in memory
        pe.fifos.append(Fifo(np.zeros(0, dtype), fifo))
        return
    start = buffer.address // size
    pe.fifos.append(Fifo(pe.views[dtype][start : start + fifo.capacity], fifo))


def _bind(pe: PE, binding: TaskBinding, fn: Compiled) -> None:
    if binding.kind == "local":
        if binding.id in pe.local:
            raise TaskClash(f"{pe.where}: two tasks are bound to local task id {binding.id}")
        pe.local[binding.id] = LocalTask(binding.id, fn.call, fn.stalls, fn.name)
    elif binding.kind == "control":
        pe.control[binding.id] = (fn.call, fn.stalls, fn.name, len(fn.params))
    else:
        color = pe.color_of(None, binding.id, out=False) if pe.machine.arch == "wse3" else binding.id
        box = pe.box(color)
        if box.task is not None:
            raise TaskClash(f"{pe.where}: two tasks are bound to colour {color}")
        box.task = (fn.call, fn.stalls, fn.name, unpacker(fn.params))
        box.blocked = False


def _bind_teardown(pe: PE, unit: PeProgram, code: Code) -> None:
    handlers = {color: code.functions[symbol] for color, symbol in unit.teardown_handlers.items()}
    stalls = any(h.stalls for h in handlers.values())

    def pending() -> list[Compiled]:
        due = pe.library.pop("teardown due", [])
        return [handlers[c] for c in due if c in handlers]

    def run(_pe: PE) -> None:
        for handler in pending():
            handler.call(pe)

    def run_stalling(_pe: PE) -> Any:
        for handler in pending():
            if handler.stalls:
                yield from handler.call(pe)
            else:
                handler.call(pe)

    pe.local[TEARDOWN_TASK] = LocalTask(TEARDOWN_TASK, run_stalling if stalls else run, stalls, "teardown")


def constant_options(options: OpOptions) -> Options:
    """Options of a register loaded before the program starts."""

    def value(e: Any) -> int | None:
        return None if e is None else int(e.value)

    def handle(e: Any) -> tuple[str, int] | None:
        return None if e is None else (str(e.type), int(e.value))

    control = options.on_control
    return Options(
        asynchronous=options.is_async,
        activate=value(options.activate),
        unblock=handle(options.unblock),
        on_control=None if control is None else (value(control.activate), handle(control.unblock)),
        save_address=options.save_address,
    )


def unpacker(params: tuple[Type, ...]) -> Callable[[int], tuple[Any, ...]]:
    """How a data task's arguments come out of a wavelet: the first from the low bits."""
    steps: list[tuple[int, Callable[[int], Any]]] = []
    at = 0
    for kind in params:
        steps.append((at, _scalar(kind)))
        at += 8 * size_of(kind)
    if len(steps) == 1:
        only = steps[0][1]
        return lambda word: (only(word),)
    return lambda word: tuple(take(word >> shift) for shift, take in steps)


def _scalar(kind: Type) -> Callable[[int], Any]:
    match kind:
        case FloatType(bits=32):
            return lambda w: np.array([w & 0xFFFFFFFF], np.uint32).view(np.float32)[0].item()
        case FloatType():
            return lambda w: np.array([w & 0xFFFF], np.uint16).view(np.float16)[0].item()
        case IntType(bits=bits, signed=signed):
            mask, half = (1 << bits) - 1, 1 << (bits - 1)
            return (lambda w: ((w + half) & mask) - half) if signed else (lambda w: w & mask)
        case EnumType(base=base):
            return _scalar(base)
        case SimpleType(name="bool"):
            return lambda w: bool(w & 1)
        case _:
            return lambda w: w & 0xFFFF


def argument(kind: Type, value: Any) -> Any:
    """A host value as an argument of an exported function."""
    if isinstance(kind, FloatType):
        return float(np.float32(value) if kind.bits == 32 else np.float16(value))
    if isinstance(kind, IntType):
        number = int(value)
        if not kind.minimum <= number <= (1 << kind.bits) - 1:
            raise HostError(f"{number} does not fit an argument of type {kind}")
        return _scalar(kind)(number & ((1 << kind.bits) - 1))
    return int(value)
