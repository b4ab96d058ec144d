"""The host of a machine: commands in order, each a while after the one before and not before the PEs allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim import watch
from wsesim.csl.sema.types import PtrType
from wsesim.fabric.errors import HostError, UnreadWavelets
from wsesim.fabric.load import argument
from wsesim.fabric.waits import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from wsesim.csl.program.elaborated import Export, Global
    from wsesim.fabric.errors import Deadlock
    from wsesim.fabric.machine import Machine
    from wsesim.fabric.pe import PE

__all__ = ["HostSession", "Region"]

Region = tuple[int, int, int, int]
_WORDS = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


class Receive:
    """Words that the host still expects from a colour."""

    def __init__(self, pes: Sequence[PE], color: int, count: int) -> None:
        self.pes = pes
        self.color = color
        self.count = count
        self.got: list[NDArray[np.uint32]] | None = None


class HostSession:
    """Drives a loaded machine as a host program would.

    Copies and calls are commands: they wait until every PE has unblocked its command stream. Streams are not. When the
    machine stands still, ``deadlock.svg`` in ``folder`` shows who waits for whom.

    Attributes:
        commands: time and name of every command.
        spans: name of each call, when it began and when the last PE took commands again.
    """

    def __init__(self, machine: Machine, folder: Path | None = None) -> None:
        self.machine = machine
        self.folder = folder
        self.last: float = 0.0
        self.receives: list[Receive] = []
        self.started = False
        self.commands: list[tuple[float, str]] = []
        self.spans: list[tuple[str, float, float]] = []
        self._open: tuple[str, float] | None = None

    # --- order -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The program begins to run."""
        self.started = True

    def _pause(self, what: str) -> None:
        """Lets the machine run until the host's next word reaches it."""
        if not self.started:
            raise HostError(f"{what}: call load() and run() first")
        machine = self.machine
        machine.run(limit=max(machine.now, self.last + machine.timing.host_command))
        self.last = machine.heard = machine.now
        self.commands.append((machine.now, what))
        machine.note(machine.now, f"host: {what}")
        self._collect()

    def _command(self, what: str) -> None:
        """Waits for its turn in the command stream."""
        if not self.started:
            raise HostError(f"{what}: call load() and run() first")
        self._unblocked(what)
        self._pause(what)
        self._unblocked(what)

    def _unblocked(self, what: str) -> None:
        blocked = [pe for pe in self.machine.pes.values() if pe.cmd_blocked]

        def free() -> bool:
            while blocked and not blocked[-1].cmd_blocked:
                blocked.pop()
            return not blocked

        if not self.machine.run(until=free):
            raise self._stuck(f"{what} waits for ever: {len(blocked)} PEs do not take a command any more")
        if self._open is not None:
            self.spans.append((*self._open, self.machine.now))
            self._open = None

    def _stuck(self, message: str) -> Deadlock:
        """The error for a machine that stands still, with a drawing in the folder."""
        error = self.machine.deadlock(message)
        if self.folder is not None and error.svg:
            path = self.folder / "deadlock.svg"
            path.write_text(error.svg, encoding="utf-8")
            error.add_note(f"who waits for whom is drawn in {path}")
        return error

    def stop(self) -> None:
        """Runs to the end and checks that every command and stream was served."""
        if not self.started:
            return
        self._unblocked("stop")
        self.machine.run()
        self._collect()
        if self.receives:
            waiting = self.receives[0]
            raise self._stuck(f"the host still expects {waiting.count} words a PE on colour {waiting.color}")
        self.started = False
        self.machine.note(self.machine.now, "host: stop")
        if self.unread:
            text = f"the program has ended, but wavelets are left that nobody read:\n{self.unread}"
            if self.machine.strict:
                raise UnreadWavelets(text)
            self.machine.note(self.machine.now, f"warning: {text}")

    @property
    def unread(self) -> str:
        """Where wavelets are that nobody has read so far, a line each; empty when there are none."""
        return leftovers(self.machine)

    def ready(self) -> None:
        """Runs until every PE takes commands again."""
        self._unblocked("the host")

    # --- regions and symbols ---------------------------------------------------------------------------------------

    def region(self, px: int, py: int, w: int, h: int) -> list[PE]:
        """The PEs of a rectangle, row by row."""
        machine = self.machine
        if px < 0 or py < 0 or w < 1 or h < 1 or px + w > machine.width or py + h > machine.height:
            inside = f"{machine.width} x {machine.height}"
            raise HostError(f"region ({px}, {py}) of {w} x {h} PEs is not inside the program's {inside} PEs")
        return [machine.pes[(x, y)] for y in range(py, py + h) for x in range(px, px + w)]

    @staticmethod
    def export(pe: PE, name: str, kind: str) -> Export:
        """An exported symbol of a PE."""
        for export in pe.program.exports:
            if export.name == name and export.kind == kind:
                return export
        have = ", ".join(sorted(e.name for e in pe.program.exports if e.kind == kind)) or "none"
        raise HostError(f"{pe.where} exports no {kind} {name!r} (it has: {have})")

    def address(self, pe: PE, name: str) -> int:
        """Byte address of the data behind an exported name."""
        export = self.export(pe, name, "variable")
        item = pe.program.globals[export.symbol]
        return int(pe.m16[item.address >> 1]) if isinstance(item.type, PtrType) else item.address

    # --- copies ----------------------------------------------------------------------------------------------------

    def copy_in(self, name: str, data: NDArray[np.uint32], where: Region, size: int) -> None:
        """Copies ``data[h, w, n]`` into an exported array; ``size`` is 2 or 4 bytes an element."""
        self._command(f"copy to {name}")
        self._copy(name, where, data.shape[2], size, data, write=True)

    def copy_out(self, name: str, data: NDArray[np.uint32], where: Region, size: int) -> None:
        """Copies an exported array into ``data[h, w, n]``."""
        self._command(f"copy from {name}")
        self._copy(name, where, data.shape[2], size, data, write=False)

    def _copy(self, name: str, where: Region, n: int, size: int, data: NDArray[np.uint32], *, write: bool) -> None:
        rows = data.reshape(-1, n)
        for pe, row in zip(self.region(*where), rows, strict=True):
            watch.poll()
            at = self.address(pe, name)
            owner = pe.bounds.owner(at)
            first, end = pe.bounds.ranges[owner]
            if at + n * size > end:
                have = f"{pe.bounds.names[owner]}, which has bytes {first} to {end}"
                what = f"{n} elements of {8 * size} bits from byte {at} on {pe.where}"
                text = f"copy of {name!r}: {what} reach beyond {have}"
                if write or self.machine.strict or at + n * size > len(pe.mem):
                    raise HostError(text)
                self.machine.warn(text, self.machine.now)  # a published program reads six words of five
            cells = np.ndarray((n,), _WORDS[size], pe.mem, at)
            if write:
                cells[...] = row.astype(_WORDS[size]) if size == 4 else (row & 0xFFFF).astype(np.uint16)
            else:
                row[...] = cells

    # --- streams ---------------------------------------------------------------------------------------------------

    def stream_in(self, color: int, data: NDArray[np.uint32], where: Region) -> None:
        """Sends ``data[h, w, n]`` to the PEs of a region on a colour."""
        self._pause(f"stream into colour {color}")
        for pe, row in zip(self.region(*where), data.reshape(-1, data.shape[2]), strict=True):
            self.machine.host_send(pe, color, np.ascontiguousarray(row).copy())

    def stream_out(self, color: int, count: int, where: Region) -> Receive:
        """Expects ``count`` words from each PE of a region on a colour."""
        self._pause(f"stream from colour {color}")
        receive = Receive(self.region(*where), color, count)
        self.receives.append(receive)
        self.machine.host_colors.add(color)
        return receive

    def _available(self, receive: Receive) -> bool:
        words = self.machine.host_words
        return all(sum(len(part) for part in words[(pe.x, pe.y, receive.color)]) >= receive.count for pe in receive.pes)

    def _collect(self) -> None:
        """Hands arrived words to the receives that expect them, oldest first."""
        while self.receives and self._available(self.receives[0]):
            receive = self.receives.pop(0)
            self.machine.heard = self.machine.now
            receive.got = [self._take(pe, receive.color, receive.count) for pe in receive.pes]

    def _take(self, pe: PE, color: int, count: int) -> NDArray[np.uint32]:
        parts = self.machine.host_words[(pe.x, pe.y, color)]
        whole = np.concatenate(parts) if parts else np.zeros(0, np.uint32)
        parts[:] = [whole[count:]] if len(whole) > count else []
        return whole[:count]

    def wait(self, receive: Receive) -> NDArray[np.uint32]:
        """Runs until the words of a receive are there; rows in the order of the region's PEs."""
        while receive.got is None:
            first = self.receives[0]
            if not self.machine.run(until=lambda first=first: self._available(first)):
                raise self._stuck(
                    f"the host waits for {first.count} words a PE on colour {first.color} that never come"
                )
            self._collect()
        return np.array(receive.got, np.uint32)

    # --- calls -----------------------------------------------------------------------------------------------------

    def call(self, name: str, args: Iterable[Any] = ()) -> None:
        """Calls an exported function on every PE that has it."""
        self._command(f"call of {name}")
        given = tuple(args)
        found = False
        for pe in self.machine.pes.values():
            exports = [e for e in pe.program.exports if e.name == name and e.kind == "function"]
            if not exports:
                continue
            found = True
            fn = pe.code.functions[exports[0].symbol]
            if len(fn.params) != len(given):
                raise HostError(f"function {name!r} takes {len(fn.params)} arguments, {len(given)} were given")
            values = tuple(argument(kind, value) for kind, value in zip(fn.params, given, strict=True))
            pe.cmd_blocked = True
            pe.call(fn.call, fn.stalls, values, name, self.machine.now)
        if not found:
            raise HostError(f"no PE exports a function {name!r}")
        self._open = (name, self.machine.now)

    # --- inspection --------------------------------------------------------------------------------------------------

    def _symbol(self, x: int, y: int, name: str) -> tuple[PE, Global]:
        pe = self.machine.pes.get((x, y))
        if pe is None:
            raise HostError(f"there is no PE ({x}, {y}) in the rectangle")
        for item in pe.program.globals.values():
            if item.name == name and item.storage == "memory":
                return pe, item
        raise HostError(f"{pe.where} has no variable {name!r} in memory")

    def read_symbol(self, x: int, y: int, name: str, dtype: Any) -> NDArray[Any]:
        """A global variable of a PE, by the name in its source."""
        pe, item = self._symbol(x, y, name)
        return np.frombuffer(bytes(pe.raw[item.address : item.address + item.size]), np.dtype(dtype)).copy()

    def write_symbol(self, x: int, y: int, name: str, image: bytes) -> None:
        """Sets a global variable of a PE."""
        pe, item = self._symbol(x, y, name)
        if len(image) != item.size:
            raise HostError(f"{name!r} on {pe.where} has {item.size} bytes, {len(image)} were given")
        pe.raw[item.address : item.address + item.size] = image
