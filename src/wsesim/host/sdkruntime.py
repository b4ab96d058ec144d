"""``SdkRuntime`` and its companions: the host interface that SDK programs are written against."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wsesim.fabric import load
from wsesim.fabric.errors import HostError
from wsesim.fabric.machine import max_cycles
from wsesim.fabric.report import write_reports
from wsesim.host.session import HostSession, Receive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from wsesim.csl.program.elaborated import Program

__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime", "Task", "stopped"]

stopped: dict[str, HostSession] = {}


class MemcpyDataType(enum.Enum):
    """Element size of a copy."""

    MEMCPY_16BIT = 2
    MEMCPY_32BIT = 4


class MemcpyOrder(enum.Enum):
    """How ``A[h][w][elements]`` lies in the host's one-dimensional array."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class Task:
    """Handle of a host operation."""

    def __init__(self, receive: Receive | None = None, finish: Any = None) -> None:
        self.receive = receive
        self.finish = finish


def _journal(path: Path) -> Callable[[str], None]:
    """Writes lines to a new file as they come: one that is read while the program runs, or stands still."""
    try:
        path.write_text("", encoding="utf-8")
    except OSError as problem:
        raise HostError(
            f"cannot write {path} to {Path.cwd()}: {problem.strerror or problem}; "
            f"suppress_simfab_trace=True leaves it out"
        ) from problem

    def add(line: str) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    return add


class SdkRuntime:
    """Runs a compiled program on the simulator.

    Args:
        bindir: the folder that ``cslc`` wrote, or the artifacts of ``SdkLayout.compile``.
        platform: from ``get_platform``; only the simulator is known.
        cmaddr: must be empty: there is no connection to a system here.
        suppress_simfab_trace: True leaves out the timeline of tasks, the report files and ``sim.log``, which is
            written to the current folder while the program runs: what PEs print, and the host's commands.
        simfab_numthreads: accepted for compatibility; the simulator runs on one thread, so only 1 to 64 is valid.
        msg_level: ``DEBUG`` or ``INFO`` print what PEs print with ``<simprint>``.
        memcpy_required: whether the program uses the memcpy interface.
    """

    def __init__(
        self,
        bindir: Any,
        platform: Any = None,
        *,
        cmaddr: str | None = None,
        suppress_simfab_trace: bool = False,
        simfab_numthreads: int = 1,
        msg_level: str = "WARNING",
        memcpy_required: bool = True,
    ) -> None:
        if cmaddr:
            raise HostError(
                f"cmaddr={cmaddr!r}: this is a simulator, it cannot reach a CS system; use the vendor's SDK"
            )
        if not 1 <= simfab_numthreads <= 64:
            raise HostError(f"simfab_numthreads must be 1 to 64, not {simfab_numthreads}")
        self.platform = platform
        self.msg_level = msg_level
        self.traced = not suppress_simfab_trace
        self.bindir = str(bindir)
        self.program: Program = self._program(bindir)
        self.values: list[tuple[int, int, str, bytes]] = list(getattr(bindir, "values", ()))
        if memcpy_required and not self.program.memcpy:
            raise HostError("the program was compiled without --memcpy")
        self._session: HostSession | None = None
        self._tasks: list[Task] = []
        self._loaded = False

    @staticmethod
    def _program(bindir: Any) -> Program:
        built = getattr(bindir, "program", None)
        if built is not None:
            return built
        from wsesim.csl.program.driver import load_output

        return load_output(Path(bindir))

    @property
    def session(self) -> HostSession:
        """The session behind this runtime, once loaded."""
        if self._session is None:
            raise HostError("call load() first")
        return self._session

    # --- life ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Puts the program on the machine."""
        folder = Path(self.bindir) if Path(self.bindir).is_dir() else None
        machine = load(self.program, traced=self.traced, strict=self.program.strict, max_cycles=max_cycles())
        if self.traced:
            machine.journal = _journal(Path("sim.log"))
        self._session = HostSession(machine, folder)
        for x, y, name, image in self.values:
            self._session.write_symbol(x, y, name, image)

    def run(self) -> None:
        """Starts it."""
        self.session.start()

    def stop(self) -> None:
        """Waits for everything that is under way and stops."""
        for task in self._tasks:
            self._finish(task)
        self._tasks.clear()
        self.session.stop()
        self._warn()
        stopped[str(Path(self.bindir).resolve())] = self.session
        self._show_log()
        if self.traced and Path(self.bindir).is_dir():
            write_reports(self.session.machine, Path(self.bindir))
        if getattr(getattr(self.platform, "config", None), "dump_core", False):
            self.dump_core(str(Path(self.bindir) / "corefile.cs1"))

    def _warn(self) -> None:
        """What strict mode would have refused."""
        found = list(self.session.machine.warnings)
        shown = [*found[:8], *([f"... and {len(found) - 8} more like these"] if len(found) > 8 else [])]
        if self.session.unread:
            shown.append(f"wavelets are left that nobody read:\n{self.session.unread}")
        sys.stderr.write("".join(f"warning: {text}\n" for text in shown))

    def _show_log(self) -> None:
        if self.msg_level in ("DEBUG", "INFO"):
            sys.stdout.write("".join(f"{line}\n" for line in self.session.machine.log))

    # --- symbols ---------------------------------------------------------------------------------------------------

    def get_id(self, symbol: str) -> int:
        """Number of an exported name."""
        for item in self.program.exported_names:
            if item.name == symbol:
                return item.id
        have = ", ".join(sorted(e.name for e in self.program.exported_names))
        raise HostError(f"the layout exports no name {symbol!r} (it has: {have})")

    def _name(self, symbol: int) -> str:
        for item in self.program.exported_names:
            if item.id == symbol:
                return item.name
        raise HostError(f"no exported symbol has id {symbol}")

    def coord_logical_to_physical(self, logical_coords: tuple[int, int]) -> tuple[int, int]:
        """Fabric coordinates of a PE of the rectangle."""
        dx, dy = self.program.fabric_offsets
        return logical_coords[0] + dx, logical_coords[1] + dy

    def read_symbol(self, x: int, y: int, symbol_name: str, dtype: str = "uint8") -> NDArray[Any]:
        """A variable of a PE, by its name in the source."""
        return self.session.read_symbol(x, y, symbol_name, dtype)

    # --- copies and streams ------------------------------------------------------------------------------------------

    @staticmethod
    def _shape(data: NDArray[Any], w: int, h: int, n: int, order: MemcpyOrder, what: str) -> NDArray[np.uint32]:
        """``A[h][w][n]`` as a 32-bit view of the host array."""
        if not isinstance(data, np.ndarray) or data.dtype.itemsize != 4:
            kind = getattr(data, "dtype", type(data).__name__)
            raise HostError(f"{what}: the host array must be a NumPy array of 32-bit elements, not {kind}")
        if type(data) is not np.ndarray and np.ma.is_masked(data):
            raise HostError(f"{what}: the host array has masked elements: give x.filled(value)")
        if data.size != w * h * n:
            raise HostError(f"{what}: {w} x {h} PEs with {n} elements each need {w * h * n} elements, not {data.size}")
        flat = data.reshape(-1).view(np.uint32)
        if order == MemcpyOrder.ROW_MAJOR:
            return flat.reshape(h, w, n)
        return flat.reshape(n, w, h).transpose(2, 1, 0)

    def memcpy_h2d(
        self,
        dest: int,
        src: NDArray[Any],
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        *,
        streaming: bool = False,
        data_type: MemcpyDataType = MemcpyDataType.MEMCPY_32BIT,
        order: MemcpyOrder = MemcpyOrder.ROW_MAJOR,
        nonblock: bool = False,
    ) -> Task:
        """Host to device."""
        data = np.ascontiguousarray(self._shape(src, w, h, elem_per_pe, order, "memcpy_h2d"))
        return self._send(int(dest), data, (px, py, w, h), streaming, data_type, nonblock)

    def _send(
        self,
        dest: int,
        data: NDArray[np.uint32],
        where: tuple[int, int, int, int],
        streaming: bool,
        data_type: MemcpyDataType,
        nonblock: bool,
    ) -> Task:
        if streaming:
            self.session.stream_in(dest, data, where)
        else:
            self.session.copy_in(self._name(dest), data, where, data_type.value)
        return self._done(nonblock)

    def _done(self, nonblock: bool) -> Task:
        """Everything before a blocking operation has been seen through when it returns."""
        if not nonblock:
            for task in self._tasks:
                self._finish(task)
            self._tasks.clear()
        return Task()

    def memcpy_h2d_rowbcast(
        self, dest: int, src: NDArray[Any], px: int, py: int, w: int, h: int, elem_per_pe: int, **kwargs: Any
    ) -> Task:
        """One column of data, copied along every row."""
        order = kwargs.pop("order", MemcpyOrder.ROW_MAJOR)
        data = self._shape(src, 1, h, elem_per_pe, order, "memcpy_h2d_rowbcast")
        return self._broadcast(dest, np.broadcast_to(data, (h, w, elem_per_pe)), (px, py, w, h), kwargs)

    def memcpy_h2d_colbcast(
        self, dest: int, src: NDArray[Any], px: int, py: int, w: int, h: int, elem_per_pe: int, **kwargs: Any
    ) -> Task:
        """One row of data, copied down every column."""
        order = kwargs.pop("order", MemcpyOrder.ROW_MAJOR)
        data = self._shape(src, w, 1, elem_per_pe, order, "memcpy_h2d_colbcast")
        return self._broadcast(dest, np.broadcast_to(data, (h, w, elem_per_pe)), (px, py, w, h), kwargs)

    def _broadcast(
        self, dest: int, data: NDArray[np.uint32], where: tuple[int, int, int, int], kwargs: dict[str, Any]
    ) -> Task:
        streaming = kwargs.pop("streaming", False)
        kind = kwargs.pop("data_type", MemcpyDataType.MEMCPY_32BIT)
        nonblock = kwargs.pop("nonblock", False)
        if kwargs:
            raise TypeError(f"unknown arguments: {', '.join(kwargs)}")
        return self._send(int(dest), np.ascontiguousarray(data), where, streaming, kind, nonblock)

    def memcpy_d2h(
        self,
        dest: NDArray[Any],
        src: int,
        px: int,
        py: int,
        w: int,
        h: int,
        elem_per_pe: int,
        *,
        streaming: bool = False,
        data_type: MemcpyDataType = MemcpyDataType.MEMCPY_32BIT,
        order: MemcpyOrder = MemcpyOrder.ROW_MAJOR,
        nonblock: bool = False,
    ) -> Task:
        """Device to host."""
        if isinstance(dest, np.ndarray) and not dest.flags.c_contiguous:
            raise HostError("memcpy_d2h: the host array must be contiguous")
        target = self._shape(dest, w, h, elem_per_pe, order, "memcpy_d2h")
        where = (px, py, w, h)
        if not streaming:
            self._done(nonblock=False)
            data = np.zeros((h, w, elem_per_pe), np.uint32)
            self.session.copy_out(self._name(int(src)), data, where, data_type.value)
            target[...] = data
            return Task()

        def fill(words: NDArray[np.uint32]) -> None:
            target[...] = words.reshape(h, w, elem_per_pe)

        task = Task(self.session.stream_out(int(src), elem_per_pe, where), fill)
        self._tasks.append(task)
        if not nonblock:
            self._done(nonblock=False)
        return task

    def _finish(self, task: Task) -> None:
        if task.receive is not None:
            task.finish(self.session.wait(task.receive))
            task.receive = None

    def task_wait(self, task_handle: Task) -> None:
        """Waits for a non-blocking operation."""
        self._finish(task_handle)
        if task_handle in self._tasks:
            self._tasks.remove(task_handle)

    def is_task_done(self, task_handle: Task) -> bool:
        """Whether a non-blocking operation has completed."""
        return task_handle.receive is None or task_handle.receive.got is not None

    # --- calls and ports ---------------------------------------------------------------------------------------------

    def launch(self, symbol: str, *args: Any, nonblock: bool = False) -> Task:
        """Calls an exported function on every PE."""
        self.session.call(symbol, args)
        return self._done(nonblock)

    def call(self, symbol: str, args: Sequence[Any] = (), *, nonblock: bool = False) -> Task:
        """The older form of :meth:`launch`: arguments as 32-bit words in hexadecimal text, or as numbers."""
        values = [int(a, 16) if isinstance(a, str) else a for a in args]
        self.session.call(symbol, values)
        return self._done(nonblock)

    def send(self, stream: Any, data: NDArray[Any], *, nonblock: bool = False) -> Task:
        """Words into an input stream of an ``SdkLayout``."""
        words = np.ascontiguousarray(data).reshape(-1).view(np.uint32)
        x, y, color = stream.entry(self.program)
        self.session.stream_in(color, words.reshape(1, 1, -1), (x, y, 1, 1))
        return self._done(nonblock)

    def receive(self, stream: Any, dest: NDArray[Any], count: int, *, nonblock: bool = False) -> Task:
        """Words from an output stream of an ``SdkLayout``."""
        x, y, color = stream.entry(self.program)

        def fill(words: NDArray[np.uint32]) -> None:
            dest.reshape(-1).view(np.uint32)[:count] = words[0]

        task = Task(self.session.stream_out(color, count, (x, y, 1, 1)), fill)
        self._tasks.append(task)
        if not nonblock:
            self._done(nonblock=False)
        return task

    def dump_core(self, corefile: str) -> None:
        """Writes the memory of every PE, ``memory[y, x, byte]``, as a NumPy archive."""
        machine = self.session.machine
        memory = np.zeros((machine.height, machine.width, 48 * 1024), np.uint8)
        for (x, y), pe in machine.pes.items():
            memory[y, x] = pe.mem
        Path(corefile).parent.mkdir(parents=True, exist_ok=True)
        with Path(corefile).open("wb") as file:
            np.savez_compressed(file, memory=memory)
