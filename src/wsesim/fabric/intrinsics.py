"""What our CSL libraries cannot say in CSL: mathematics, the clock, the PE's place, its router, traces and prints."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.fabric.codegen.random_bits import next16
from wsesim.fabric.errors import ProgramFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.fabric.pe import PE
    from wsesim.fabric.routing import RouterColor

__all__ = ["INTRINSICS", "PURE"]

Intrinsic = "Callable[..., Any]"
_SIDES = ("RAMP", "WEST", "EAST", "SOUTH", "NORTH")
_IO = ("tx WEST", "tx EAST", "tx SOUTH", "tx NORTH", "tx RAMP", "rx WEST", "rx EAST", "rx SOUTH", "rx NORTH", "rx RAMP")
_POP = ("no_pop", "always_pop", "pop_on_advance", "no_pop")


# --- mathematics -----------------------------------------------------------------------------------------------------


def _guard(fn: Callable[..., float]) -> Callable[..., float]:
    """IEEE results where Python raises."""

    def apply(*args: float) -> float:
        try:
            return fn(*(float(a) for a in args))
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return math.nan

    return apply


def _inv(x: float) -> float:
    return 1.0 / x if x else math.copysign(math.inf, x)


def _log(x: float) -> float:
    return -math.inf if x == 0 else math.log(x)


def _round_to(fn: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: float(fn(x)) if math.isfinite(x) else x


def _sign(x: Any) -> Any:
    return type(x)(int(x > 0) - int(x < 0))  # NumPy's truth values cannot be subtracted


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1.0 / (1.0 + math.exp(-x))


def _fscale(x: float, by: float) -> float:
    try:
        return math.ldexp(x, int(by))
    except OverflowError:
        return math.copysign(math.inf, x)


def _pow(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except (OverflowError, ValueError):  # infinite, with a sign, or of a negative number
        with np.errstate(all="ignore"):
            return float(np.float_power(x, y))


PURE: dict[str, Callable[..., Any]] = {
    "math.sqrt": _guard(math.sqrt),
    "math.exp": _guard(math.exp),
    "math.log": _guard(_log),
    "math.sin": _guard(math.sin),
    "math.cos": _guard(math.cos),
    "math.tanh": _guard(math.tanh),
    "math.sig": _guard(_sigmoid),
    "math.inv": _guard(_inv),
    "math.invsqrt": _guard(lambda x: _inv(math.sqrt(x))),
    "math.pow": _guard(_pow),
    "math.fscale": _guard(_fscale),
    "math.floor": _guard(_round_to(math.floor)),
    "math.ceil": _guard(_round_to(math.ceil)),
    "math.abs": abs,
    "math.sign": _sign,
    "math.isNaN": lambda x: bool(x != x),
    "math.isInf": lambda x: math.isinf(x),
    "math.isFinite": lambda x: math.isfinite(x),
    "math.isSignaling": lambda _x: False,
    "math.signbit": lambda x: math.copysign(1.0, x) < 0,
}


def _with_pe(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _pe, *args: fn(*args)


# --- clock and place -------------------------------------------------------------------------------------------------


def _low(pe: PE) -> int:
    latched = int(pe.t - pe.tsc_base)
    pe.library["tsc"] = latched
    return latched & 0xFFFF


def _middle(pe: PE) -> int:
    return (pe.library.get("tsc", 0) >> 16) & 0xFFFF


def _high(pe: PE) -> int:
    return (pe.library.get("tsc", 0) >> 32) & 0xFFFF


def _reset(pe: PE) -> None:
    pe.tsc_base = pe.t


def _enable(pe: PE) -> None:
    pe.library["tsc_on"] = True


def _disable(pe: PE) -> None:
    pe.library["tsc_on"] = False


def _unblock(pe: PE) -> None:
    def unblocked(now: float) -> None:
        pe.cmd_blocked = False
        pe.machine.heard = now

    pe.machine.at(max(pe.t, pe.machine.now), unblocked)


# --- traces and prints -----------------------------------------------------------------------------------------------


def _record(pe: PE, key: str, size: int, value: Any, words: int) -> None:
    trace = pe.library.setdefault(("trace", key), [])
    used = pe.library.get(("trace words", key), 0)
    if used + words <= size:
        trace.append(value)
        pe.library[("trace words", key)] = used + words


def _tracer(words: int, convert: Callable[[Any], Any]) -> Callable[..., None]:
    def apply(pe: PE, key: str, size: int, value: Any) -> None:
        _record(pe, key, size, convert(value), words)

    return apply


def _trace_string(pe: PE, key: str, text: str, size: int) -> None:
    _record(pe, key, size, text, 2)


def _trace_timestamp(pe: PE, key: str, size: int) -> None:
    _record(pe, key, size, int(pe.t - pe.tsc_base), 4)


def _print(pe: PE, text: str) -> None:
    line = pe.library.get("line", "") + text
    while "\n" in line:
        done, line = line.split("\n", 1)
        pe.machine.log.append(done)
        pe.machine.note(pe.t, done)
    pe.library["line"] = line


def _printer(convert: Callable[[Any], str]) -> Callable[..., None]:
    return lambda pe, value: _print(pe, convert(value))


# --- random numbers --------------------------------------------------------------------------------------------------


def _seed(pe: PE, seed: int) -> None:
    pe.prng = seed


def _uniform(pe: PE, low: float, high: float) -> float:
    bits = next16(pe) << 16 | next16(pe)
    return low + (high - low) * (bits / (1 << 32))


def _bits(pe: PE, power: int) -> int:
    return (next16(pe) << 16 | next16(pe)) & ((1 << min(power, 32)) - 1)


def _normal(pe: PE) -> float:
    u = max(_uniform(pe, 0.0, 1.0), 1e-7)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * _uniform(pe, 0.0, 1.0))


# --- the router ------------------------------------------------------------------------------------------------------


def _router(pe: PE, color: int) -> RouterColor:
    at = pe.machine.routers.get((pe.x, pe.y, color))
    if at is None:
        raise ProgramFault(f"{pe.where}: colour {color} has no configuration that could be changed")
    return at


def _changed(pe: PE, at: RouterColor, color: int) -> None:
    pe.machine.dynamic[color] = True
    at.go(at.pos)
    pe.machine.switched(at)
    if not at.teardown:
        machine = pe.machine
        machine.at(machine.now, lambda _now: machine.drain(pe.x, pe.y, color))


@cache
def _sides(mask: int) -> tuple[str, ...]:
    return tuple(side for i, side in enumerate(_SIDES) if mask >> i & 1)


@cache
def _side_set(mask: int) -> frozenset[str]:
    return frozenset(_sides(mask))


def _compose(at: RouterColor) -> None:
    """Positions that change one side keep the other side of the position before."""
    for i in range(1, len(at.positions)):
        rx, tx = at.positions[i]
        before = at.positions[i - 1]
        at.positions[i] = (rx if i in at.own_rx else before[0], tx if i in at.own_tx else before[1])


def _reset_routes(pe: PE, color: int, rx: int, tx: int) -> None:
    at = _router(pe, color)
    at.positions[0] = (_side_set(rx), _sides(tx))
    _compose(at)
    _changed(pe, at, color)


def _io(change: Callable[[bool], bool]) -> Callable[[PE, int, int], None]:
    def apply(pe: PE, color: int, which: int) -> None:
        at = _router(pe, color)
        kind, side = _IO[which].split()
        rx, tx = at.positions[0]
        have = side in (rx if kind == "rx" else tx)
        want = change(have)
        if kind == "rx":
            rx = (rx | {side}) if want else rx - {side}
        else:
            tx = (*(s for s in tx if s != side), *((side,) if want else ()))
        at.positions[0] = (rx, tx)
        _compose(at)
        _changed(pe, at, color)

    return apply


def _set_position(pe: PE, color: int, pos: int) -> None:
    at = _router(pe, color)
    at.pos = pos
    pe.machine.gates[color] = False
    _changed(pe, at, color)


def _set_ring(pe: PE, color: int, mode: int) -> None:
    _router(pe, color).ring = bool(mode)


def _set_pop(pe: PE, color: int, mode: int) -> None:
    _router(pe, color).pop = _POP[mode]


def _invalidate(pe: PE, color: int) -> None:
    at = _router(pe, color)
    at.valid = [True, False, False, False]
    at.own_rx.clear()
    at.own_tx.clear()
    at.positions[1:] = [at.positions[0]] * 3
    _changed(pe, at, color)


def _switch(kind: str) -> Callable[[PE, int, int, int], None]:
    def apply(pe: PE, color: int, pos: int, mask: int) -> None:
        at = _router(pe, color)
        pe.machine.gates[color] = False
        while len(at.positions) < 4:
            at.positions.append(at.positions[-1])
        rx, tx = at.positions[pos]
        at.valid[pos] = True
        if kind == "rx":
            at.own_rx.add(pos)
            rx = frozenset(_sides(mask))
        else:
            at.own_tx.add(pos)
            tx = _sides(mask)
        at.positions[pos] = (rx, tx)
        _compose(at)
        _changed(pe, at, color)

    return apply


def _exit_teardown(pe: PE, color: int) -> None:
    pe.machine.at(max(pe.t, pe.machine.now), lambda _now: pe.machine.leave_teardown(pe.x, pe.y, color))


def _filter(field: str) -> Callable[[PE, int, int], None]:
    def apply(pe: PE, color: int, value: int) -> None:
        state = _router(pe, color).filter
        if state is None:
            raise ProgramFault(f"{pe.where}: colour {color} has no filter")
        setattr(state, field, value)

    return apply


def _local_priority(pe: PE, number: int, level: int) -> None:
    if number in pe.local:
        pe.local[number].priority = level


def _color_priority(pe: PE, color: int, level: int) -> None:
    pe.box(color).priority = level


def _data_priority(pe: PE, number: int, level: int) -> None:
    pe.box(pe.color_of(None, number, out=False) if pe.machine.arch == "wse3" else number).priority = level


def _note(key: str) -> Callable[[PE, int], None]:
    return lambda pe, value: pe.library.__setitem__(key, value)


INTRINSICS: dict[str, Callable[..., Any]] = {name: _with_pe(fn) for name, fn in PURE.items()} | {
    "time.low": _low,
    "time.middle": _middle,
    "time.high": _high,
    "time.enable": _enable,
    "time.disable": _disable,
    "time.reset": _reset,
    "layout.x": lambda pe: pe.x,
    "layout.y": lambda pe: pe.y,
    "memcpy.unblock_cmd_stream": _unblock,
    **{f"debug.trace_{t}": _tracer(2, bool if t == "bool" else int) for t in ("bool", "u8", "i8", "u16", "i16")},
    **{f"debug.trace_{t}": _tracer(3, int) for t in ("u32", "i32")},
    "debug.trace_f16": _tracer(2, float),
    "debug.trace_f32": _tracer(3, float),
    "debug.trace_string": _trace_string,
    "debug.trace_timestamp": _trace_timestamp,
    "simprint.print_string": lambda pe, text: _print(pe, text.split("\0")[0]),
    "simprint.print_u16_binary": _printer(lambda v: f"{v:016b}"),
    "simprint.print_u32_binary": _printer(lambda v: f"{v:032b}"),
    "simprint.print_u16_hex": _printer(lambda v: f"{v:04X}"),
    "simprint.print_u32_hex": _printer(lambda v: f"{v:08X}"),
    **{f"simprint.print_{t}_decimal": _printer(str) for t in ("u16", "u32")},
    **{f"simprint.print_{t}": _printer(lambda v: str(float(v))) for t in ("f16", "f32")},
    "random.seed": _seed,
    "random.uniform": _uniform,
    "random.bits": _bits,
    "random.normal": _normal,
    "tile.reset_routes": _reset_routes,
    "tile.set_io": _io(lambda _have: True),
    "tile.toggle_io": _io(lambda have: not have),
    "tile.clear_io": _io(lambda _have: False),
    "tile.set_position": _set_position,
    "tile.set_ring": _set_ring,
    "tile.set_pop": _set_pop,
    "tile.invalidate": _invalidate,
    "tile.switch_rx": _switch("rx"),
    "tile.switch_tx": _switch("tx"),
    "tile.exit_teardown": _exit_teardown,
    "tile.pending": lambda pe: pe.teardown_pending,
    "tile.filter_limit": _filter("limit1"),
    "tile.filter_max": _filter("max_counter"),
    "tile.filter_counter": _filter("counter"),
    "tile.local_priority": _local_priority,
    "tile.color_priority": _color_priority,
    "tile.data_priority": _data_priority,
    "tile.main_priority": _note("main_priority"),
    "tile.exception_mask": _note("exception_mask"),
}
