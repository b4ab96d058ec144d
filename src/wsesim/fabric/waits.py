"""Who waits for whom when a machine stands still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wsesim.fabric.routing import trace

if TYPE_CHECKING:
    from wsesim.fabric.machine import Machine
    from wsesim.fabric.pe import PE
    from wsesim.fabric.stream import Inbox, StreamOp

__all__ = ["busy", "leftovers", "picture", "svg"]

Edge = tuple[tuple[int, int], tuple[int, int], str]
_MOST = 40
_ARROW = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#b00020"/></marker></defs>'
)


def _senders(machine: Machine, x: int, y: int, color: int) -> list[tuple[int, int]]:
    """PEs whose route on a colour ends, or is stopped, at (x, y)."""
    found: list[tuple[int, int]] = []
    for px, py in machine.pes:
        at = machine.router(px, py, color)
        if at is None or (px, py) == (x, y):
            continue
        if any("RAMP" in rx for rx, _ in at.positions):
            route = trace(machine.router, px, py, color)
            if any((e.x, e.y) == (x, y) for e in route.ends):
                found.append((px, py))
    return found


def _operation(machine: Machine, op: StreamOp, what: str) -> tuple[str, list[Edge]]:
    pe = op.pe
    text = f"PE ({pe.x}, {pe.y}): {what} @{op.spec.name} waits for {op.blocked_on or 'its turn'}"
    text += f", {op.left} of {op.left + op.pos} elements to go"
    edges: list[Edge] = []
    for box in op.inputs:
        if not box.available():
            why = f"wavelets on colour {box.color}"
            edges += [((pe.x, pe.y), sender, why) for sender in _senders(machine, pe.x, pe.y, box.color)]
    if op.outlet is not None and op.blocked_on.startswith("room"):
        for end in trace(machine.router, pe.x, pe.y, op.outlet.color).ends:
            state = "open" if end.open else "closed"
            text += f"; the way ends at PE ({end.x}, {end.y}), {state} to it"
            edges.append(((pe.x, pe.y), (end.x, end.y), f"room on colour {op.outlet.color}"))
    return text, edges


def _waits(machine: Machine, pe: PE) -> tuple[list[str], list[Edge]]:
    lines: list[str] = []
    edges: list[Edge] = []
    pending = [(op, "microthread") for op in pe.microthreads]
    if pe.stalled is not None:
        pending.append((pe.stalled, f"task {pe.task_name!r} in"))
    for op, what in pending:
        line, found = _operation(machine, op, what)
        lines.append(line)
        edges += found
    lines += [
        f"PE ({pe.x}, {pe.y}): task {task.name!r} (id {task.id}) is active but blocked"
        for task in pe.local.values()
        if task.active and task.blocked
    ]
    for box in pe.boxes.values():
        if box.pending:
            lines.append(f"PE ({pe.x}, {pe.y}): {box.pending} wavelets on colour {box.color} wait, {_why(box)}")
    return lines, edges


def _why(box: Inbox) -> str:
    if box.op is not None:
        return f"@{box.op.spec.name} takes them when it has {box.op.blocked_on or 'its turn'}"
    return "nobody reads them" if box.task is None else "its task is blocked" if box.blocked else "its task is due"


def _under_way(machine: Machine) -> list[str]:
    """Wavelets between processors: in front of routers that do not let them through."""
    lines: list[str] = []
    for (x, y, color), queues in machine.parked.items():
        at = machine.router(x, y, color)
        why = "has no configuration" if at is None else "is in teardown" if at.teardown else "is closed to that side"
        for side, queue in queues.items():
            if queue:
                count = sum(len(s.words) for s in queue)
                lines.append(
                    f"router ({x}, {y}): {count} wavelets of colour {color} from {side} wait, the router {why}"
                )
    for pe in machine.pes.values():
        for outlet in pe.outlets.values():
            if machine.dynamic[outlet.color] or not outlet.outstanding or all(box for box, _, _ in outlet.ends):
                continue
            lines += [
                f"router ({end.x}, {end.y}): up to {outlet.outstanding:.0f} wavelets of colour {end.color}, "
                f"sent by PE ({pe.x}, {pe.y}), wait, the router is closed to them"
                for end in trace(machine.router, pe.x, pe.y, outlet.color).ends
                if not end.open
            ]
    return lines


def leftovers(machine: Machine) -> str:
    """Wavelets that nobody has read, a line for each place; empty when there are none."""
    lines = [
        f"PE ({pe.x}, {pe.y}): {box.pending} wavelets on colour {box.color} wait, {_why(box)}"
        for pe in machine.pes.values()
        for box in pe.boxes.values()
        if box.pending
    ]
    lines += _under_way(machine)
    for (x, y, color), parts in machine.host_words.items():
        count = sum(len(part) for part in parts)
        if count:
            lines.append(f"host: {count} words of PE ({x}, {y}) on colour {color} were never asked for")
    lines += [
        f"PE ({x}, {y}): {count} wavelets on colour {color} were taken, but no task is bound to it"
        for (x, y, color), count in machine.dropped.items()
    ]
    return "\n".join(f"  {line}" for line in _short(lines))


def _short(lines: list[str]) -> list[str]:
    return [*lines[:_MOST], f"... and {len(lines) - _MOST} more"] if len(lines) > _MOST else lines


def picture(machine: Machine) -> tuple[str, tuple[Edge, ...]]:
    """The wait-for graph as text, and its edges."""
    lines: list[str] = []
    edges: list[Edge] = []
    for pe in machine.pes.values():
        found, more = _waits(machine, pe)
        lines += found
        edges += more
    lines += _under_way(machine)
    blocked = [f"({pe.x}, {pe.y})" for pe in machine.pes.values() if pe.cmd_blocked]
    if blocked:
        shown = ", ".join(blocked[:8]) + (", ..." if len(blocked) > 8 else "")
        lines.append(f"{len(blocked)} PEs never called unblock_cmd_stream: {shown}")
    cycle = find_cycle(edges)
    if cycle:
        lines.insert(0, "cycle: " + " -> ".join(f"PE {p}" for p in cycle))
    return "\n".join(f"  {line}" for line in _short(lines)), tuple(edges)


def busy(machine: Machine) -> str:
    """What the PEs of a machine that goes on are at, and who waits meanwhile."""
    lines: list[str] = []
    for pe in machine.pes.values():
        ready = [pe.local[n].name for n in sorted(pe.ready) if n in pe.local]
        if pe.task_name and (pe.t > machine.now or ready):
            lines.append(f"PE ({pe.x}, {pe.y}): task {pe.task_name!r} ran last, {pe.tasks_run:,} tasks in all")
        lines += [f"PE ({pe.x}, {pe.y}): task {name!r} is ready" for name in ready]
    shown = [*lines[:8], *([f"... and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    return "\n".join([*(f"  {line}" for line in shown), picture(machine)[0]])


def find_cycle(edges: list[Edge]) -> list[tuple[int, int]]:
    """Some cycle of the graph, first node repeated at the end.

    >>> find_cycle([((0, 0), (1, 0), ""), ((1, 0), (0, 0), "")])
    [(0, 0), (1, 0), (0, 0)]
    """
    graph: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for a, b, _ in edges:
        graph.setdefault(a, []).append(b)
    done: set[tuple[int, int]] = set()
    for start in graph:
        path: list[tuple[int, int]] = []
        on_path: dict[tuple[int, int], int] = {}
        stack = [(start, 0)]
        while stack:
            node, i = stack.pop()
            if i == 0:
                if node in on_path:
                    return [*path[on_path[node] :], node]
                if node in done:
                    continue
                on_path[node] = len(path)
                path.append(node)
            following = graph.get(node, [])
            if i < len(following):
                stack.append((node, i + 1))
                stack.append((following[i], 0))
            else:
                path.pop()
                on_path.pop(node)
                done.add(node)
    return []


def svg(machine: Machine, edges: tuple[Edge, ...]) -> str:
    """The wait-for graph as a drawing: PEs as squares, an arrow from each waiter to whom it waits for."""
    size, gap = 44, 28
    step = size + gap
    width, height = machine.width * step + gap, machine.height * step + gap
    waiting = {a for a, _, _ in edges}
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    out = [f'{head} font-family="sans-serif" font-size="11">', _ARROW]
    for x, y in machine.pes:
        fill = "#ffd9d9" if (x, y) in waiting else "#eef2f7"
        px, py = gap + x * step, gap + y * step
        out.append(f'<rect x="{px}" y="{py}" width="{size}" height="{size}" rx="5" fill="{fill}" stroke="#64748b"/>')
        out.append(f'<text x="{px + size / 2}" y="{py + size / 2 + 4}" text-anchor="middle">{x},{y}</text>')
    for (ax, ay), (bx, by), why in edges:
        x1, y1 = gap + ax * step + size / 2, gap + ay * step + size / 2
        x2, y2 = gap + bx * step + size / 2, gap + by * step + size / 2
        out.append(
            f'<path d="M{x1} {y1}Q{(x1 + x2) / 2 + 12} {(y1 + y2) / 2 - 12} {x2} {y2}" fill="none" stroke="#b00020" '
            f'marker-end="url(#tip)"><title>({ax}, {ay}) waits for ({bx}, {by}): {why}</title></path>'
        )
    return "\n".join([*out, "</svg>"])
