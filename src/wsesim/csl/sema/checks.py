"""Checks of a whole program: resources that clash, queues nobody initialised, routes that run in circles.

Always on: missing queue initialisation on WSE-3, queues that contradict their descriptors, two input queues on one
colour, routing loops. In strict mode also: ids reserved for memcpy, fabric descriptors without a queue on WSE-3,
registers loaded twice, colours received from two sides, operations in one block that share a queue or microthread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema.static_routes import find_loop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wsesim.csl.program.elaborated import PeProgram, Program
    from wsesim.csl.sema.unit import Session
    from wsesim.csl.syntax.diagnostics import Diagnostics
    from wsesim.csl.syntax.source import Position

__all__ = ["MEMCPY_COLORS", "MEMCPY_QUEUES", "MEMCPY_TASKS", "check_program"]

# Marked as reserved in the published tutorials' maps of ids.
MEMCPY_COLORS = frozenset((21, 22, 23, 27, 28, 30))
MEMCPY_TASKS = frozenset((21, 22, 23, 27, 28, 29, 30, 31))
MEMCPY_QUEUES = frozenset((0, 1))


def check_program(program: Program, dsds: Sequence[Sequence[tree.DsdConst]], session: Session) -> None:
    """Adds a named diagnostic for every conflict; ``dsds`` holds the descriptors each PE program can use."""
    for pe, found in zip(program.programs, dsds, strict=True):
        _check_queues(pe, found, program, session)
        if session.strict:
            _check_strict(pe, found, program, session.diagnostics)
    if session.strict:
        _check_routers(program, session.diagnostics)
    loop = find_loop(program)
    if loop is not None:
        color, cells, config = loop
        path = " -> ".join(f"{x},{y}" for x, y in [*cells, cells[0]])
        text = f"colour {color} runs in a circle: {path}"
        hint = "a wavelet on it never leaves the fabric; end the route in a RAMP"
        session.diagnostics.error("routing-loop", text, config.pos, 1, hint)


def _check_queues(pe: PeProgram, dsds: Sequence[tree.DsdConst], program: Program, session: Session) -> None:
    diagnostics = session.diagnostics
    table = {(q.direction, q.id): q for q in pe.queues}
    by_color: dict[int, int] = {}
    for queue in pe.queues:
        if queue.direction == "input" and queue.color is not None:
            other = by_color.setdefault(queue.color, queue.id)
            if other != queue.id:
                text = f"colour {queue.color} feeds two input queues, {other} and {queue.id}"
                diagnostics.error("queue-clash", text, queue.pos)
    routed = _routed(pe, program)
    for dsd in dict.fromkeys(d for d in dsds if str(d.type) in ("fabin_dsd", "fabout_dsd")):
        direction = "input" if str(dsd.type) == "fabin_dsd" else "output"
        if dsd.queue is None:
            if session.strict and program.arch == "wse3":
                text = f"a {dsd.type} on WSE-3 needs .{direction}_queue"
                diagnostics.error("missing-queue", text, dsd.pos)
            continue
        queue = table.get((direction, dsd.queue))
        if queue is None and program.arch == "wse3":
            # A published program names queues of colours that this PE does not route, and never gets there.
            if dsd.color is None or dsd.color in routed or session.strict:
                _missing_init(diagnostics, direction, dsd.queue, dsd.color, dsd.pos)
        elif queue is not None and None not in (queue.color, dsd.color) and queue.color != dsd.color:
            text = f"{direction} queue {dsd.queue} is initialised for colour {queue.color}, this DSD uses {dsd.color}"
            diagnostics.error("queue-color-mismatch", text, dsd.pos, 1, f"initialised at {queue.pos}")
    if program.arch == "wse3":
        for task in pe.tasks:
            if task.kind == "data" and ("input", task.id) not in table:
                _missing_init(diagnostics, "input", task.id, None, task.pos)


def _routed(pe: PeProgram, program: Program) -> set[int]:
    """Colours that some PE with this program routes."""
    found = set(pe.colors)
    for at, index in program.tiles.items():
        if program.programs[index] is pe:
            found.update(program.colors[at])
    return found


def _missing_init(diagnostics: Diagnostics, direction: str, queue: int, color: int | None, pos: Position) -> None:
    text = f"{direction} queue {queue} is used but never initialised, which WSE-3 requires"
    shown = "<its colour>" if color is None else f"@get_color({color})"
    hint = f"add @initialize_queue(@get_{direction}_queue({queue}), .{{ .color = {shown} }}) to a comptime block"
    diagnostics.error("missing-queue-init", text, pos, 1, hint)


# --- strict mode -----------------------------------------------------------------------------------------------------


def _check_routers(program: Program, diagnostics: Diagnostics) -> None:
    """What the layout and the programs together ask of routers."""
    seen: set[tuple[int, Position]] = set()
    for (x, y), table in program.colors.items():
        for number, config in table.items():
            if (number, config.pos) in seen:
                continue
            seen.add((number, config.pos))
            if len(config.rx) > 1:
                text = f"colour {number} of PE {x},{y} is received from two sides: {', '.join(config.rx)}"
                hint = "one .rx a position; change it with a switch"
                diagnostics.error("two-receiving-sides", text, config.pos, 1, hint)
            if program.memcpy and number in MEMCPY_COLORS and not config.pos.file.startswith("<"):
                diagnostics.error("reserved-id", f"colour {number} is reserved for memcpy", config.pos)


def _check_strict(pe: PeProgram, dsds: Sequence[tree.DsdConst], program: Program, diagnostics: Diagnostics) -> None:
    if program.memcpy:
        _check_reserved(pe, dsds, program, diagnostics)
    loaded: dict[tuple[str, int], tree.DsdConst] = {}
    for load in pe.dsr_loads:
        first = loaded.setdefault((load.file, load.id), load.dsd)
        if first != load.dsd:
            text = f"{load.file} {load.id} is loaded with two descriptors before the program starts"
            diagnostics.error("dsr-clash", text, load.dsd.pos)
    for function in pe.functions.values():
        for block in _blocks(function.body):
            _check_concurrent(block, pe, program, diagnostics)


def _check_reserved(pe: PeProgram, dsds: Sequence[tree.DsdConst], program: Program, diagnostics: Diagnostics) -> None:
    for task in pe.tasks:
        limit = MEMCPY_TASKS if task.kind == "local" else MEMCPY_COLORS if program.arch == "wse2" else MEMCPY_QUEUES
        if task.kind != "control" and task.id in limit and "." not in task.function:
            text = f"{task.kind} task id {task.id} is reserved for memcpy"
            diagnostics.error("reserved-id", text, task.pos)
    for queue in pe.queues:
        if queue.id in MEMCPY_QUEUES and program.arch == "wse3" and not queue.pos.file.startswith("<"):
            diagnostics.error("reserved-id", f"{queue.direction} queue {queue.id} is reserved for memcpy", queue.pos)
    used = [(q.color, q.pos) for q in pe.queues] + [(d.color, d.pos) for d in dsds]
    for number, pos in dict.fromkeys(used):
        if number in MEMCPY_COLORS and not pos.file.startswith("<"):
            diagnostics.error("reserved-id", f"colour {number} is reserved for memcpy", pos)


def _blocks(body: tuple[tree.Stmt, ...]) -> Iterable[tuple[tree.Stmt, ...]]:
    yield body
    for stmt in body:
        match stmt:
            case tree.If(then=then, other=other):
                yield from _blocks(then)
                yield from _blocks(other)
            case tree.Block(body=inner) | tree.While(body=inner) | tree.ForRange(body=inner):
                yield from _blocks(inner)
            case tree.Switch(cases=cases, default=default):
                for case in cases:
                    yield from _blocks(case.body)
                yield from _blocks(default)
            case _:
                pass


def _check_concurrent(block: tuple[tree.Stmt, ...], pe: PeProgram, program: Program, diagnostics: Diagnostics) -> None:
    """Asynchronous operations started in one run of statements must not share a queue or a microthread."""
    users: dict[tuple[str, int], tree.DsdOp] = {}
    for stmt in block:
        op = stmt.expr if isinstance(stmt, tree.ExprStmt) else None
        if not isinstance(op, tree.DsdOp) or not op.options.is_async:
            continue
        for resource in _resources(op, pe, program):
            first = users.setdefault(resource, op)
            if first is not op:
                text = f"two asynchronous operations here share {resource[0]} {resource[1]}"
                code = "microthread-clash" if resource[0] == "microthread" else "queue-clash"
                hint = f"the first one is at {first.pos}; start the second when the first has ended"
                diagnostics.error(code, text, op.pos, 1, hint)


def _resources(op: tree.DsdOp, pe: PeProgram, program: Program) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    output = _queue_of(op.dest, "fabout_dsd", pe)
    inputs = [q for q in (_queue_of(x, "fabin_dsd", pe) for x in op.sources) if q is not None]
    if output is not None:
        found.append(("output queue", output))
    found += [("input queue", q) for q in inputs]
    if program.arch == "wse2":
        threads = [output] if output is not None else inputs[:1]
    else:
        threads = [int(op.options.ut_id.value)] if isinstance(op.options.ut_id, tree.Const) else []
    return found + [("microthread", q) for q in threads]


def _queue_of(operand: tree.Expr, kind: str, pe: PeProgram) -> int | None:
    if isinstance(operand, tree.Load) and isinstance(operand.place, tree.ObjectRef) and operand.place.index is None:
        objects = pe.globals[operand.place.symbol].objects
        if objects and objects[0] is not None:
            operand = objects[0]
    if isinstance(operand, tree.DsdConst) and str(operand.type) == kind:
        return operand.queue
    return None
