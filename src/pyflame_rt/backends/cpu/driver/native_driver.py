"""The native driver: walks the steps of a plan in one call, with the GIL released.

`run(plan, io)` applies the patches (pointers of this run's inputs and outputs), then executes the steps in order.
It returns 0, or at the first fault `CANCELLED`, a status of oneDNN or the value of a checked flag, with the step's
index in `plan.failed` (-1: a patch). Where `plan.times` points to memory, the time before each step, and after the
last, is written there.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int64, c_void_p
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from pyflame_rt.backends.cpu.driver.adaptive_threads import (
    CLOCK,
    FIRST,
    LONG,
    LONG_PAUSE,
    PAUSE,
    emit_threads,
    emit_watched,
    least,
)
from pyflame_rt.backends.cpu.driver.processors import emit_apart, emit_left, emit_told
from pyflame_rt.backends.cpu.ir.builder import Builder
from pyflame_rt.backends.cpu.jit.compiler import follow, own_address, prepare_text
from pyflame_rt.backends.cpu.jit.target import host
from pyflame_rt.backends.cpu.run.gomp import load_gomp
from pyflame_rt.graph.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CANCELLED",
    "MAX_THREADS",
    "NativePlan",
    "NativeStep",
    "OpenMP",
    "Patch",
    "PatchKind",
    "StepKind",
    "clock",
    "driver_address",
    "openmp",
    "prepare_driver",
    "run",
    "watch",
]

CANCELLED = -1
MAX_THREADS = 64  # chunks of a step are claimed in one 64-bit word
# How often a thread without work looks whether the others are done, some 100 us: one that falls asleep here has to be
# woken for the next step.
_LOOKS = 4000
_ALIGNED_ROWS = 1024  # from so many rows a thread on, chunks begin at multiples of 64


class StepKind(IntEnum):
    """What a step does; the fields of `NativeStep` it uses are named."""

    PRIMITIVE = 0  # dnnl_primitive_execute(fn, stream, nargs, args)
    KERNEL = 1  # fn(args, params, begin, end) over rows, by chunks of at least grain rows
    COPY = 2  # memcpy(args[0], args[1], rows bytes)
    CHECK = 3  # stop with the status at args[0] (int64) unless it is 0
    BRANCHES = 4  # the nargs plans at args (NativePlan*), each on one thread; the first status that is not 0


class PatchKind(IntEnum):
    """What a patch sets to io[k] + offset."""

    POINTER = 0  # the void* at target
    MEMORY = 1  # the data handle of the dnnl_memory_t target


class NativeStep(ctypes.Structure):
    """One step of a plan."""

    _fields_ = (
        ("kind", c_int64),
        ("fn", c_void_p),
        ("args", c_void_p),
        ("nargs", c_int64),
        ("params", c_void_p),
        ("rows", c_int64),
        ("grain", c_int64),
        # Chunks a thread may have: more than one evens out threads that get on differently. Of primitives: 1 where it
        # may run on fewer threads than it was made for.
        ("pieces", c_int64),
    )


class Patch(ctypes.Structure):
    """A pointer that each run brings."""

    _fields_ = (("kind", c_int64), ("target", c_void_p), ("io", c_int64), ("offset", c_int64))


class NativePlan(ctypes.Structure):
    """What the driver walks; belongs to one arena, so to one run at a time."""

    _fields_ = (
        ("steps", c_void_p),
        ("nsteps", c_int64),
        ("patches", c_void_p),
        ("npatches", c_int64),
        ("cancel", c_void_p),  # int64 word, may be null
        ("stream", c_void_p),
        ("execute", c_void_p),  # dnnl_primitive_execute
        ("set_handle", c_void_p),  # dnnl_memory_set_data_handle
        ("parallel", c_void_p),  # GOMP_parallel, null: one thread
        ("thread_num", c_void_p),  # omp_get_thread_num
        ("num_threads", c_int64),
        ("failed", c_int64),
        ("clock", c_void_p),  # clock_gettime, used only when there are times or the plan is watched
        ("times", c_void_p),  # nsteps + 1 pairs of seconds and nanoseconds, null: not asked for
        ("budget", c_void_p),  # two int64: threads of the process, runs under way; null: this run has all it asks for
        ("watched", c_int64),  # 1: runs that are short enough to wait longer for a thread than it saves, 2: others
        ("single", c_int64),  # 1: this run has one thread
        ("left", c_int64),  # runs on one thread before threads are tried again
        ("pause", c_int64),  # how many of them there were the last time
        ("alone", c_int64),  # nanoseconds that a run on one thread takes
        ("doubt", c_int64),  # grows with runs on several threads that took longer, shrinks with others
        ("tried", c_int64),  # runs on several threads
        ("best", c_int64),  # nanoseconds that a run on several threads takes
        ("get_level", c_void_p),  # omp_get_max_active_levels, null: no primitive of several threads could do with one
        ("set_level", c_void_p),  # omp_set_max_active_levels: with 0, regions of this thread have one thread
        ("level", c_int64),  # what it was
        ("processors", c_void_p),  # `Processors`, null: threads stay where the system has them
    )


class _Team(ctypes.Structure):
    """What the threads of one parallel step share."""

    _fields_ = (
        ("fn", c_void_p),
        ("args", c_void_p),
        ("params", c_void_p),
        ("rows", c_int64),
        ("chunks", c_int64),
        ("thread_num", c_void_p),
        ("claimed", c_int64),
        ("each", c_int64),  # chunks that are a thread's own
        ("finished", c_int64),  # chunks that are done
        ("processors", c_void_p),
        ("processor", c_int64),  # where the thread runs that began the step
    )


@dataclass(frozen=True)
class OpenMP:
    """Addresses of the functions of libgomp the driver calls; 0 when the library is absent."""

    parallel: int = 0
    thread_num: int = 0
    get_level: int = 0
    set_level: int = 0


@cache
def openmp() -> OpenMP:
    """The process's libgomp, the same that oneDNN uses."""
    library = load_gomp()
    if library is None:
        return OpenMP()
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_max_active_levels", "omp_set_max_active_levels")
    return OpenMP(*(ctypes.cast(getattr(library, name), c_void_p).value or 0 for name in names))


@cache
def clock() -> int:
    """Address of the C library's clock_gettime; 0 where there is none."""
    function = getattr(ctypes.CDLL(None), "clock_gettime", None) if os.name == "posix" else None
    return 0 if function is None else ctypes.cast(function, c_void_p).value or 0


def watch(plan: NativePlan, *, brief: bool) -> None:
    """Let a plan find out whether threads come in time, and do without where they do not.

    Args:
        plan: all of a run.
        brief: it has little work, none of it by primitives of several threads: it begins with one.
    """
    if clock():
        plan.clock = clock()
        plan.watched, plan.pause, plan.left = (1, PAUSE, FIRST) if brief else (LONG, LONG_PAUSE, 0)
        if not brief:
            plan.get_level, plan.set_level = openmp().get_level or None, openmp().set_level or None


@cache
def run() -> Callable[[Any, Any], int]:
    """The driver, compiled at first use: `run()(byref(plan), io)` with io an array of pointers (or None)."""
    address = driver_address()
    function = ctypes.CFUNCTYPE(c_int64, c_void_p, c_void_p)(address)
    follow(address, ctypes.addressof(function), function)
    return function


def driver_address() -> int:
    """Where the driver is, for native callers."""
    return own_address("pyflame_run", driver_ir)


def prepare_driver() -> None:
    """The driver will be needed."""
    prepare_text("pyflame_run", driver_ir)


def driver_ir() -> str:
    """The driver's module: `pyflame_run` and what the threads of a team execute."""
    b = Builder(host())
    emit_apart(b)
    _emit_worker(b)
    _emit_branches(b)
    _emit_body(b)
    _emit_run(b)
    return b.text()


class _Fields:
    """Loads and stores fields of a structure of 8-byte members at a pointer."""

    def __init__(self, b: Builder, structure: type[ctypes.Structure], pointer: str) -> None:
        self._b, self._pointer = b, pointer
        self._places = {name: (k, kind) for k, (name, kind) in enumerate(structure._fields_)}  # pyright: ignore[reportAssignmentType]

    def address(self, name: str) -> str:
        return self._b.element("i64", self._pointer, str(self._places[name][0]))

    def kind(self, name: str) -> str:
        return "ptr" if self._places[name][1] is c_void_p else "i64"

    def load(self, name: str) -> str:
        return self._b.op(f"load {self.kind(name)}, ptr {self.address(name)}")

    def store(self, name: str, value: str) -> None:
        self._b.do(f"store {self.kind(name)} {value}, ptr {self.address(name)}")


def _emit_worker(b: Builder) -> None:
    """What the threads of a step do: each chunk is a part of the rows."""
    b.begin()
    team = _Fields(b, _Team, "%team")
    fn, args, params, rows, chunks = (team.load(name) for name in ("fn", "args", "params", "rows", "chunks"))
    aligned = b.op(f"icmp sge i64 {rows}, {b.integer(f'mul {chunks}, {_ALIGNED_ROWS}')}")
    rounding = b.op(f"select i1 {aligned}, i64 -64, i64 -1")
    for chunk in _claimed(b, team, chunks):
        bounds = [
            b.integer(f"udiv {b.integer(f'mul {rows}, {c}')}, {chunks}") for c in (chunk, b.integer(f"add {chunk}, 1"))
        ]
        begin, end = (b.integer(f"and {bound}, {rounding}") for bound in bounds)
        end = b.op(f"select i1 {b.op(f'icmp eq i64 {bounds[1]}, {rows}')}, i64 {rows}, i64 {end}")
        b.do(f"call void {fn}(ptr {args}, ptr {params}, i64 {begin}, i64 {end})")
        b.op(f"atomicrmw add ptr {team.address('finished')}, i64 1 monotonic")
    _emit_wait(b, team, chunks)
    b.do("ret void")
    b.end("internal void @pyflame_team(ptr %team)")


def _emit_wait(b: Builder, team: _Fields, chunks: str) -> None:
    """A while without sleep, until the chunks that others have are done; libgomp's own waiting orders memory."""
    look, again, done, origin = b.label("look"), b.label("again"), b.label("together"), b.block
    b.jump(look)
    b.place(look)
    k = b.phi("i64", ("0", origin))
    finished = b.op(f"load atomic i64, ptr {team.address('finished')} monotonic, align 8")
    b.branch(b.op(f"icmp uge i64 {finished}, {chunks}"), done, again)
    b.place(again)
    if "+sse2" in b.host.features:
        b.call("void", "llvm.x86.sse2.pause", [])
    after = b.integer(f"add {k}, 1")
    b.add_incoming(k, after, again)
    b.branch(b.op(f"icmp ult i64 {after}, {_LOOKS}"), look, done)
    b.place(done)


def _emit_branches(b: Builder) -> None:
    """What the threads of a window do: each chunk is a plan; a status that is not 0 is left in `rows`."""
    b.begin()
    team = _Fields(b, _Team, "%team")
    args, chunks = team.load("args"), team.load("chunks")
    for chunk in _claimed(b, team, chunks):
        plan = b.op(f"load ptr, ptr {b.element('ptr', args, chunk)}")
        status = b.op(f"call i64 @pyflame_steps(ptr {plan}, ptr null)")
        bad, good = b.label("bad"), b.label("good")
        b.branch(b.op(f"icmp eq i64 {status}, 0"), good, bad)
        b.place(bad)
        b.do(f"store atomic i64 {status}, ptr {team.address('rows')} monotonic, align 8")
        b.jump(good)
        b.place(good)
    b.do("ret void")
    b.end("internal void @pyflame_branches(ptr %team)")


def _claimed(b: Builder, team: _Fields, chunks: str) -> Iterator[str]:
    """A thread takes its own chunks, then any nobody has taken: the team may be smaller than asked for."""
    number = b.op(f"zext i32 {b.op('call i32 ' + team.load('thread_num') + '()')} to i64")
    emit_left(b, team, number)
    own = b.integer(f"mul {number}, {team.load('each')}")
    loop, mine, following, done = (b.label(hint) for hint in ("try", "mine", "following", "done"))
    origin = b.block
    b.jump(loop)
    b.place(loop)
    k = b.phi("i64", ("0", origin))
    chunk = b.integer(f"urem {b.integer(f'add {own}, {k}')}, {chunks}")
    bit = b.integer(f"shl 1, {chunk}")
    before = b.op(f"atomicrmw or ptr {team.address('claimed')}, i64 {bit} monotonic")
    free = b.op(f"icmp eq i64 {b.integer(f'and {before}, {bit}')}, 0")
    b.branch(free, mine, following)
    b.place(mine)
    yield chunk
    b.jump(following)
    b.place(following)
    after = b.integer(f"add {k}, 1")
    b.add_incoming(k, after, following)
    b.branch(b.op(f"icmp ult i64 {after}, {chunks}"), loop, done)
    b.place(done)


def _emit_run(b: Builder) -> None:
    """The entry: counts itself among the runs under way, so that these can share the process's threads."""
    b.begin()
    plan = _Fields(b, NativePlan, "%plan")
    budget, stamps = plan.load("budget"), b.op("alloca [4 x i64], align 8")
    counted, alone = b.label("counted"), b.label("alone")
    b.branch(b.op(f"icmp eq ptr {budget}, null"), alone, counted)
    b.place(alone)
    b.do(f"ret i64 {b.op('call i64 @pyflame_steps(ptr %plan, ptr %io)')}")
    b.place(counted)
    runs = b.element("i64", budget, "1")
    b.op(f"atomicrmw add ptr {runs}, i64 1 monotonic")
    watched, plain, done = b.label("watched"), b.label("plain"), b.label("done")
    b.branch(b.op(f"icmp eq i64 {plan.load('watched')}, 0"), plain, watched)
    b.place(plain)
    first = b.op("call i64 @pyflame_steps(ptr %plan, ptr %io)")
    b.jump(done)
    b.place(watched)
    second = emit_watched(b, plan, stamps)
    after = b.block
    b.jump(done)
    b.place(done)
    status = b.phi("i64", (first, plain), (second, after))
    b.op(f"atomicrmw sub ptr {runs}, i64 1 monotonic")
    b.do(f"ret i64 {status}")
    b.end("i64 @pyflame_run(ptr %plan, ptr %io)")


def _emit_body(b: Builder) -> None:
    b.begin()
    plan = _Fields(b, NativePlan, "%plan")
    team = b.op(f"alloca [{ctypes.sizeof(_Team)} x i8], align 8")
    failed = b.label("failed")
    patch, patch_status, patch_block = _emit_patches(b, plan, failed)
    step, step_status, step_block = _emit_steps(b, plan, team, failed)
    plan.store("failed", "0")
    b.do("ret i64 0")
    b.place(failed)
    index = b.phi("i64", (patch, patch_block), (step, step_block))
    status = b.phi("i64", (patch_status, patch_block), (step_status, step_block))
    plan.store("failed", index)
    b.do(f"ret i64 {status}")
    b.end("internal i64 @pyflame_steps(ptr %plan, ptr %io)")


def _counted(b: Builder, number: str) -> Iterator[str]:
    """`for i in range(number)`: yields i once, for the body to be emitted."""
    loop, done, origin = b.label("each"), b.label("after"), b.block
    b.branch(b.op(f"icmp sgt i64 {number}, 0"), loop, done)
    b.place(loop)
    i = b.phi("i64", ("0", origin))
    yield i
    following = b.integer(f"add {i}, 1")
    b.add_incoming(i, following, b.block)
    b.branch(b.op(f"icmp slt i64 {following}, {number}"), loop, done)
    b.place(done)


def _emit_patches(b: Builder, plan: _Fields, failed: str) -> tuple[str, str, str]:
    patches, number, set_handle = (plan.load(name) for name in ("patches", "npatches", "set_handle"))
    exit_case = ("", "", "")
    for i in _counted(b, number):
        patch = _Fields(b, Patch, b.element("i8", patches, b.integer(f"mul {i}, {ctypes.sizeof(Patch)}")))
        target = patch.load("target")
        base = b.op(f"load ptr, ptr {b.element('ptr', '%io', patch.load('io'))}")
        pointer = b.element("i8", base, patch.load("offset"))
        memory, plain, done = b.label("memory"), b.label("plain"), b.label("patched")
        b.branch(b.op(f"icmp eq i64 {patch.load('kind')}, {PatchKind.MEMORY:d}"), memory, plain)
        b.place(memory)
        status = b.op(f"sext i32 {b.op(f'call i32 {set_handle}(ptr {target}, ptr {pointer})')} to i64")
        exit_case = ("-1", status, b.block)
        b.branch(b.op(f"icmp eq i64 {status}, 0"), done, failed)
        b.place(plain)
        b.do(f"store ptr {pointer}, ptr {target}")
        b.jump(done)
        b.place(done)
    return exit_case


def _emit_steps(b: Builder, plan: _Fields, team: str, failed: str) -> tuple[str, str, str]:
    steps, number, cancel = (plan.load(name) for name in ("steps", "nsteps", "cancel"))
    exit_case = ("", "", "")
    times, clock_call = plan.load("times"), plan.load("clock")
    for i in _counted(b, number):
        _emit_stamp(b, times, clock_call, i)
        step = _Fields(b, NativeStep, b.element("i8", steps, b.integer(f"mul {i}, {ctypes.sizeof(NativeStep)}")))
        judge, go = b.label("judge"), b.label("go")
        results = [(str(CANCELLED), _emit_cancel(b, cancel, go, judge))]
        b.place(go)
        results += _emit_step(b, plan, step, team, judge)
        b.place(judge)
        status = b.phi("i64", *results)
        exit_case = (i, status, b.block)
        good = b.label("good")
        b.branch(b.op(f"icmp eq i64 {status}, 0"), good, failed)
        b.place(good)
    _emit_stamp(b, times, clock_call, number)
    return exit_case


def _emit_stamp(b: Builder, times: str, clock_call: str, place: str) -> None:
    """Write the time into place k of `times`, if there is such memory."""
    stamp, on = b.label("stamp"), b.label("on")
    b.branch(b.op(f"icmp eq ptr {times}, null"), on, stamp)
    b.place(stamp)
    b.do(f"call i32 {clock_call}(i32 {CLOCK}, ptr {b.element('[2 x i64]', times, place)})")
    b.jump(on)
    b.place(on)


def _emit_cancel(b: Builder, cancel: str, go: str, judge: str) -> str:
    look = b.label("look")
    b.branch(b.op(f"icmp eq ptr {cancel}, null"), go, look)
    b.place(look)
    word = b.op(f"load atomic i64, ptr {cancel} monotonic, align 8")
    b.branch(b.op(f"icmp eq i64 {word}, 0"), go, judge)
    return look


def _emit_step(b: Builder, plan: _Fields, step: _Fields, team: str, judge: str) -> list[tuple[str, str]]:
    """The cases of a step; each jumps to `judge` with a (status, block)."""
    fn, args, rows = (step.load(name) for name in ("fn", "args", "rows"))
    labels = {kind: b.label(kind.name.lower()) for kind in StepKind}
    cases = " ".join(f"i64 {kind:d}, label %{label}" for kind, label in labels.items())
    b.do(f"switch i64 {step.load('kind')}, label %{labels[StepKind.CHECK]} [ {cases} ]")
    results = []
    b.place(labels[StepKind.PRIMITIVE])
    emit_threads(b, plan, step, back=False)
    nargs = b.op(f"trunc i64 {step.load('nargs')} to i32")
    call = f"call i32 {plan.load('execute')}(ptr {fn}, ptr {plan.load('stream')}, i32 {nargs}, ptr {args})"
    status = b.op(f"sext i32 {b.op(call)} to i64")
    emit_threads(b, plan, step, back=True)
    results.append((status, b.block))
    b.jump(judge)
    b.place(labels[StepKind.KERNEL])
    results += _emit_kernel(b, plan, step, team, (fn, args, rows), judge)
    b.place(labels[StepKind.COPY])
    target, source = (b.op(f"load ptr, ptr {b.element('ptr', args, str(k))}") for k in range(2))
    b.call("void", "llvm.memcpy.p0.p0.i64", [("ptr", target), ("ptr", source), ("i64", rows), ("i1", "false")])
    results.append(("0", b.block))
    b.jump(judge)
    b.place(labels[StepKind.CHECK])
    results.append((b.load_i64(b.op(f"load ptr, ptr {args}"), 0), b.block))
    b.jump(judge)
    b.place(labels[StepKind.BRANCHES])
    results.append(_emit_window(b, plan, step, team, args))
    b.jump(judge)
    return results


def _emit_window(b: Builder, plan: _Fields, step: _Fields, team: str, args: str) -> tuple[str, str]:
    count, parallel = step.load("nargs"), plan.load("parallel")
    threads = least(b, count, _emit_share(b, plan))
    shared = _Fields(b, _Team, team)
    for name, value in {"args": args, "rows": "0", "chunks": count, "claimed": "0", "each": "1"}.items():
        shared.store(name, value)
    shared.store("thread_num", plan.load("thread_num"))
    emit_told(b, plan, shared)
    split, single, done = b.label("side"), b.label("turn"), b.label("window")
    many = b.op(f"icmp sgt i64 {threads}, 1")
    b.branch(b.op(f"and i1 {many}, {b.op(f'icmp ne ptr {parallel}, null')}"), split, single)
    b.place(split)
    b.do(f"call void {parallel}(ptr @pyflame_branches, ptr {team}, i32 {b.op(f'trunc i64 {threads} to i32')}, i32 0)")
    b.jump(done)
    b.place(single)
    b.do(f"call void @pyflame_branches(ptr {team})")
    b.jump(done)
    b.place(done)
    return shared.load("rows"), b.block


def _emit_kernel(
    b: Builder, plan: _Fields, step: _Fields, team: str, values: tuple[str, str, str], judge: str
) -> list[tuple[str, str]]:
    fn, args, rows = values
    params, grain, parallel = step.load("params"), step.load("grain"), plan.load("parallel")
    safe = b.op(f"select i1 {b.op(f'icmp sgt i64 {grain}, 0')}, i64 {grain}, i64 1")
    rounded_up = b.integer(f"add {rows}, {b.integer(f'sub {safe}, 1')}")
    wanted = b.integer(f"udiv {rounded_up}, {safe}")
    team_size = least(b, wanted, least(b, _emit_share(b, plan), str(MAX_THREADS)))
    pieces = step.load("pieces")
    several = b.op(f"select i1 {b.op(f'icmp sgt i64 {pieces}, 1')}, i64 {pieces}, i64 1")
    most = least(b, wanted, least(b, b.integer(f"mul {team_size}, {several}"), str(MAX_THREADS)))
    many = b.op(f"icmp sgt i64 {team_size}, 1")
    both = b.op(f"and i1 {many}, {b.op(f'icmp ne ptr {parallel}, null')}")
    split, single = b.label("split"), b.label("single")
    b.branch(both, split, single)
    b.place(single)
    b.do(f"call void {fn}(ptr {args}, ptr {params}, i64 0, i64 {rows})")
    b.jump(judge)
    b.place(split)
    shared = _Fields(b, _Team, team)
    each = b.integer(f"udiv {most}, {team_size}")
    chunks = b.integer(f"mul {each}, {team_size}")  # as many for each thread
    fields = {"fn": fn, "args": args, "params": params, "rows": rows, "chunks": chunks, "claimed": "0", "each": each}
    for name, value in {**fields, "finished": "0"}.items():
        shared.store(name, value)
    shared.store("thread_num", plan.load("thread_num"))
    emit_told(b, plan, shared)
    threads = b.op(f"trunc i64 {team_size} to i32")
    b.do(f"call void {parallel}(ptr @pyflame_team, ptr {team}, i32 {threads}, i32 0)")
    shared_end = b.block
    b.jump(judge)
    return [("0", single), ("0", shared_end)]


def _emit_share(b: Builder, plan: _Fields) -> str:
    """How many threads this step may use: all that the plan has, or a part when other runs are under way."""
    alone = b.op(f"icmp ne i64 {plan.load('single')}, 0")
    own, budget = b.op(f"select i1 {alone}, i64 1, i64 {plan.load('num_threads')}"), plan.load("budget")
    look, crowd, done, origin = b.label("budget"), b.label("crowd"), b.label("share"), b.block
    b.branch(b.op(f"icmp eq ptr {budget}, null"), done, look)
    b.place(look)
    runs = b.op(f"load atomic i64, ptr {b.element('i64', budget, '1')} monotonic, align 8")
    b.branch(b.op(f"icmp sgt i64 {runs}, 1"), crowd, done)
    b.place(crowd)
    part = b.integer(f"sdiv {b.op(f'load i64, ptr {budget}')}, {runs}")
    positive = b.op(f"select i1 {b.op(f'icmp sgt i64 {part}, 1')}, i64 {part}, i64 1")
    share = least(b, own, positive)
    b.jump(done)
    b.place(done)
    return b.phi("i64", (own, origin), (own, look), (share, crowd))
