"""What elaboration yields and the machine runs.

:class:`Program` is the whole compilation: the rectangle, the tile code of every PE, the colour configuration of every
router and the names exported to the host. PEs with the same file and the same parameter values share one
:class:`PeProgram`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from wsesim.csl.syntax.source import NOWHERE, Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wsesim.csl.program.typed_tree import DsdConst, Local, OpOptions, Stmt
    from wsesim.csl.sema.types import FnType, Type
    from wsesim.csl.syntax.diagnostics import Diagnostic

__all__ = [
    "DIRECTIONS",
    "MEMORY_BYTES",
    "ColorConfig",
    "DsrLoad",
    "Export",
    "ExportedName",
    "Fifo",
    "Filter",
    "Function",
    "Global",
    "MemoryMap",
    "PeProgram",
    "Program",
    "QueueInit",
    "Relocation",
    "SwitchPosition",
    "Switches",
    "TaskBinding",
]

MEMORY_BYTES = 48 * 1024
DIRECTIONS = ("RAMP", "WEST", "EAST", "SOUTH", "NORTH")  # a ``direction`` value is an index into this


# --- routers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SwitchPosition:
    """``pos1``..``pos3``: the sides that change; None keeps what the position before had."""

    rx: tuple[str, ...] | None = None
    tx: tuple[str, ...] | None = None
    invalid: bool = False


@dataclass(frozen=True)
class Switches:
    """Switch part of a colour configuration; ``positions`` holds pos1, pos2, pos3 (invalid where not given)."""

    positions: tuple[SwitchPosition, SwitchPosition, SwitchPosition]
    current: int = 0
    ring_mode: bool = False
    pop_mode: Literal["no_pop", "always_pop", "pop_on_advance", "pop_on_advance_nop"] = "no_pop"


@dataclass(frozen=True)
class Filter:
    """Filter part of a colour configuration; fields as in the documentation of ``@set_color_config``."""

    kind: Literal["counter", "sparse_counter", "range"]
    count_data: bool = False
    count_control: bool = False
    init_counter: int = 0
    limit1: int = 0
    limit2: int | None = None
    max_counter: int = 0
    filter_control: bool = False
    max_idx: int = 0
    min_idx: int = 0
    fast_mode: bool = False  # seen in published programs, not documented; does not change what passes


@dataclass(frozen=True)
class ColorConfig:
    """Routing of one colour at one router; sides are names from :data:`DIRECTIONS`."""

    rx: tuple[str, ...] = ()
    tx: tuple[str, ...] = ()
    color_swap_x: bool = False
    color_swap_y: bool = False
    switches: Switches | None = None
    filter: Filter | None = None
    teardown: bool = False
    pos: Position = field(default=NOWHERE, compare=False)


# --- one PE ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relocation:
    """The 16-bit word at ``offset`` of a global holds the address of ``symbol`` plus ``addend`` bytes."""

    offset: int
    symbol: str
    addend: int = 0


@dataclass(frozen=True)
class Global:
    """A global variable that the program reaches.

    Attributes:
        symbol: unique name in the program (``name`` in the main file, ``module.name`` style for imported ones).
        name: as written.
        type: its type.
        address: byte address in the PE's memory, for ``memory`` storage.
        size: bytes.
        align: bytes.
        init: initial bytes with pointers to globals already resolved, None for zeros.
        relocations: where those pointers are.
        const: declared with ``const``.
        storage: ``memory``, or ``object`` for DSDs and arrays of DSDs, which live beside memory (their bytes count).
        objects: initial descriptors of an ``object`` global, one per element (None: undefined).
    """

    symbol: str
    name: str
    type: Type
    address: int
    size: int
    align: int
    init: bytes | None = None
    relocations: tuple[Relocation, ...] = ()
    const: bool = False
    storage: Literal["memory", "object"] = "memory"
    objects: tuple[DsdConst | None, ...] = ()
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Function:
    """A function or task that the program reaches.

    Attributes:
        symbol: unique name.
        name: as written.
        type: signature; ``is_task`` tells a task.
        params: one local each; a parameter of aggregate type is a pointer to the caller's copy.
        locals: every local of the body, parameters included.
        frame_size: bytes of frame for arrays, structs and address-taken locals.
        body: statements.
        may_stall: it may wait for the fabric (a synchronous fabric operand here or in a callee).
        calls: symbols of the functions called or mapped.
    """

    symbol: str
    name: str
    type: FnType
    params: tuple[Local, ...]
    locals: tuple[Local, ...]
    frame_size: int
    body: tuple[Stmt, ...]
    may_stall: bool = False
    calls: tuple[str, ...] = ()
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class TaskBinding:
    """``@bind_local_task``/``@bind_data_task``/``@bind_control_task``.

    The id of a data task is a colour on WSE-2 and an input queue on WSE-3. ``rotation`` holds ``(init, limit)`` for the
    alternating task of ``@bind_rotating_tasks``.
    """

    kind: Literal["local", "data", "control"]
    id: int
    function: str
    rotation: tuple[int, int] | None = None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class QueueInit:
    """``@initialize_queue``."""

    direction: Literal["input", "output"]
    id: int
    color: int | None
    priority: str = ""
    ctrl_table_id: int = 0
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Fifo:
    """``@allocate_fifo`` over the whole global ``buffer``."""

    index: int
    name: str
    buffer: str
    elem: Type
    capacity: int
    activate_push: int | None = None
    activate_pop: int | None = None
    empty_action: str = "test_or_suspend"
    full_action: str = "test_or_suspend"
    priority: str = ""
    simd_mode: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class DsrLoad:
    """``@load_to_dsr`` in a top-level comptime block: the register's content when the program starts."""

    file: str  # dsr_dest, dsr_src0 or dsr_src1
    id: int
    dsd: DsdConst
    options: OpOptions


@dataclass(frozen=True)
class Export:
    """``@export_symbol``: a global or function that the host may name; ``id`` is its RPC id."""

    name: str
    id: int
    kind: Literal["variable", "function"]
    symbol: str
    type: Type
    mutable: bool = True
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class MemoryMap:
    """How the 48 KB are spent, in bytes; ``code`` is an estimate, the reserves are stated constants."""

    data: int
    code: int
    stack: int
    reserve: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.data + self.code + self.stack + self.reserve


@dataclass(frozen=True)
class PeProgram:
    """One elaborated PE program, shared by every PE with the same file and parameters."""

    file: str
    params: Mapping[str, Any]
    globals: Mapping[str, Global]
    functions: Mapping[str, Function]
    tasks: tuple[TaskBinding, ...] = ()
    queues: tuple[QueueInit, ...] = ()
    colors: Mapping[int, ColorConfig] = field(default_factory=dict)
    fifos: tuple[Fifo, ...] = ()
    dsr_loads: tuple[DsrLoad, ...] = ()
    exports: tuple[Export, ...] = ()
    initially_active: tuple[int, ...] = ()  # local task ids activated in a comptime block
    initially_blocked: tuple[tuple[str, int], ...] = ()  # (handle type name, id), in program order
    initially_unblocked: tuple[tuple[str, int], ...] = ()
    teardown_handlers: Mapping[int, str] = field(default_factory=dict)  # colour -> function symbol
    empty_queue_handlers: Mapping[tuple[str, int], str] = field(default_factory=dict)
    control_table: tuple[int, int] | None = None  # (instructions, stride) of @set_control_task_table
    rpc: int | None = None  # data task id of @rpc
    config: Mapping[int, int] = field(default_factory=dict)  # @set_config in comptime blocks
    library_state: Mapping[str, Any] = field(default_factory=dict)  # facts that our libraries record for the machine
    memory: MemoryMap = MemoryMap(0, 0, 0, 0)
    memory_image: bytes = b""  # initial content of [0, len) of the PE's memory


# --- the whole program -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportedName:
    """``@export_name`` of the layout; ``id`` is shared by all PEs."""

    name: str
    id: int
    type: Type
    mutable: bool | None
    color: int | None = None  # a stream's colour


@dataclass(frozen=True)
class Program:
    """The elaborated layout.

    ``tiles[(x, y)]`` is an index into ``programs``; ``colors[(x, y)]`` maps a colour id to its configuration at that
    router, the PE program's own ``@set_local_color_config`` calls included.
    """

    arch: Literal["wse2", "wse3"]
    width: int
    height: int
    programs: tuple[PeProgram, ...]
    tiles: Mapping[tuple[int, int], int]
    colors: Mapping[tuple[int, int], Mapping[int, ColorConfig]]
    exported_names: tuple[ExportedName, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)  # as given to cslc; out.json shows them as text
    fabric_dims: tuple[int, int] | None = None
    fabric_offsets: tuple[int, int] = (0, 0)
    memcpy: bool = False
    channels: int = 0
    width_west_buf: int = 0
    width_east_buf: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)  # file name -> text, everything that was read
    warnings: tuple[Diagnostic, ...] = ()  # what the compiler noticed without refusing the program
    given: Mapping[str, Any] = field(default_factory=dict)  # parameters as given: text, or ("color", id)
    strict: bool = False  # compiled, and to be run, in strict mode

    def pe(self, x: int, y: int) -> PeProgram:
        """The program of the PE in column ``x``, row ``y`` of the rectangle."""
        return self.programs[self.tiles[(x, y)]]
