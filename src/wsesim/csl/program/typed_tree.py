"""The typed statements and expressions of an elaborated PE program.

Everything the compiler could decide is gone: comptime branches are pruned, generic functions instantiated, names
resolved, implicit conversions written out as :class:`Cast`. What is left runs on the PE.

Conventions:

* every expression has a concrete run-time ``type``; both operands of :class:`Binary`/:class:`Compare` have one type
  (shifts: the right operand may be another integer type);
* integer arithmetic wraps to the type's width; ``/`` and ``%`` on integers truncate towards zero;
* scalars, pointers, handles and DSDs are values held in :class:`Local` slots or in memory; arrays and structs always
  live in memory (a global, or a frame slot of the function) and move by :class:`CopyBytes`;
* a pointer is a byte address (16 bits);
* DSD-typed globals and locals hold descriptor values (see :class:`DsdConst`), DSD arrays are "object" globals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wsesim.csl.sema.types import BOOL, VOID, PtrType, Type
from wsesim.csl.syntax.source import NOWHERE, Position

__all__ = [
    "AddressOf",
    "Assert",
    "Assign",
    "Binary",
    "Block",
    "Break",
    "Builtin",
    "Call",
    "Cast",
    "Compare",
    "Const",
    "Continue",
    "CopyBytes",
    "DsdConst",
    "DsdMake",
    "DsdOp",
    "Expr",
    "ExprStmt",
    "ForRange",
    "FrameAddr",
    "FunctionRef",
    "GlobalAddr",
    "If",
    "Let",
    "Load",
    "Local",
    "Logical",
    "MapOp",
    "MemRef",
    "ObjectRef",
    "OnControl",
    "OpOptions",
    "Place",
    "Position",
    "Return",
    "Select",
    "Stmt",
    "Switch",
    "SwitchCase",
    "Unary",
    "While",
]


@dataclass(frozen=True)
class Local:
    """A local variable or parameter of scalar, pointer, handle or DSD type. ``index`` is unique in its function."""

    index: int
    name: str
    type: Type


# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    """A scalar known at compile time.

    ``value`` is an ``int`` (integers, enums, handles: the id; pointers: an absolute address; ``direction``: 0 RAMP,
    1 WEST, 2 EAST, 3 SOUTH, 4 NORTH), a ``float`` already rounded to the type, or a ``bool``.
    """

    type: Type
    value: int | float | bool
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class GlobalAddr:
    """Address of a global (``program.globals[symbol].address + offset``)."""

    type: PtrType
    symbol: str
    offset: int = 0
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class FrameAddr:
    """Address inside the calling function's frame (arrays, structs and locals whose address is taken)."""

    type: PtrType
    offset: int
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class FunctionRef:
    """A function or task named as an operand (for :class:`MapOp` and some builtins)."""

    type: Type
    symbol: str
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class DsdConst:
    """A descriptor known at compile time.

    Attributes:
        type: which kind of DSD.
        base: symbol of the global it describes (memory kinds, FIFOs), or None.
        offset: byte offset from the base (or an absolute byte address when ``base`` is None).
        extents: lengths, outermost dimension first; one entry for all kinds but ``mem4d_dsd``.
        strides: per dimension in ``extents`` order, in elements of ``elem``: how far the address moves when that
            index alone grows by one (not the documentation's incremental form).
        elem: element type of the described array (memory kinds), None for fabric kinds.
        color: fabric colour, or None when the queue decides.
        queue: input or output queue id, or None.
        control: fabout sends control wavelets.
        wavelet_index_offset: the ``.index`` option of an operation applies to this operand.
        wraparound: elements before a circular buffer starts again.
        simd_mode: "" or ``simd_32``, ``simd_64``, ``simd_32_or_64``.
        priority: "" or ``high``, ``medium``, ``low``.
        advance_switch: fabout advances the switch after its last wavelet.
        control_transform: keeps the control bit through a FIFO.
        zero_source: "" or ``first_source``/``second_source``, cleared when the operation ends.
        fifo: index into ``PeProgram.fifos`` for a FIFO descriptor, else None.
    """

    type: Type
    base: str | None = None
    offset: int = 0
    extents: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    elem: Type | None = None
    color: int | None = None
    queue: int | None = None
    control: bool = False
    wavelet_index_offset: bool = False
    wraparound: int = 0
    simd_mode: str = ""
    priority: str = ""
    advance_switch: bool = False
    control_transform: bool = False
    zero_source: str = ""
    fifo: int | None = None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class MemRef:
    """A place in memory: ``base + offset + sum(index * stride)`` bytes, holding a value of ``type``.

    ``indices`` holds ``(index expression, stride in bytes, extent or None)``; a known extent allows a bounds check.
    ``const`` tells that the program may not write here. ``bits`` is ``(bit offset, bit width)`` for a packed field.
    """

    type: Type
    base: Expr
    offset: int = 0
    indices: tuple[tuple[Expr, int, int | None], ...] = ()
    const: bool = False
    bits: tuple[int, int] | None = None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class ObjectRef:
    """An element of a global with object storage: a DSD (no index) or a DSD array (flat row-major index)."""

    type: Type
    symbol: str
    index: Expr | None = None
    const: bool = False
    pos: Position = field(default=NOWHERE, compare=False)


Place: TypeAlias = Local | MemRef | ObjectRef


@dataclass(frozen=True)
class Load:
    """Value of a place."""

    type: Type
    place: Place
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class AddressOf:
    """Byte address of a memory place."""

    type: Type
    place: MemRef
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Unary:
    """``-`` or ``~`` on a number, ``!`` on a bool."""

    type: Type
    op: Literal["-", "~", "!"]
    operand: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Binary:
    """``+ - * / % & | ^ << >>``; the result has the operands' type."""

    type: Type
    op: str
    left: Expr
    right: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Compare:
    """``== != < <= > >=``; type is always bool."""

    op: str
    left: Expr
    right: Expr
    type: Type = BOOL
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Logical:
    """Short-circuit ``and``/``or``."""

    op: Literal["and", "or"]
    left: Expr
    right: Expr
    type: Type = BOOL
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Select:
    """``if (c) a else b`` as an expression; only the chosen side is evaluated."""

    type: Type
    cond: Expr
    then: Expr
    other: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Cast:
    """A conversion.

    ``numeric``: by value (float to int truncates towards zero, int to narrower int wraps, anything to bool compares
    with zero); ``bits``: same bits, other type; ``pointer``: the address stays; ``handle``: an integer becomes a
    colour, task id, ... or back (``@get_color`` on a run-time value, ``@get_int``).
    """

    type: Type
    kind: Literal["numeric", "bits", "pointer", "handle"]
    operand: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Call:
    """Call of ``program.functions[symbol]``; aggregate arguments arrive as addresses of a copy."""

    type: Type
    symbol: str
    args: tuple[Expr, ...]
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class DsdMake:
    """``@get_dsd`` with run-time fields: ``const`` with some parts replaced.

    ``base`` is a pointer expression (None: as in ``const``), then ``offset`` elements of ``const.elem`` are added;
    ``extent``/``stride`` replace the single dimension's values.
    """

    type: Type
    const: DsdConst
    base: Expr | None = None
    offset: Expr | None = None
    extent: Expr | None = None
    stride: Expr | None = None
    color: Expr | None = None
    queue: Expr | None = None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class OnControl:
    """What a control wavelet does to an asynchronous operation: ends it, and then activates or unblocks."""

    activate: Expr | None = None
    unblock: Expr | None = None


@dataclass(frozen=True)
class OpOptions:
    """The options struct of a DSD operation or ``@load_to_dsr``.

    ``activate`` is a ``local_task_id``; ``unblock`` a task id, colour or queue handle (its type tells which).
    """

    is_async: bool = False
    activate: Expr | None = None
    unblock: Expr | None = None
    on_control: OnControl | None = None
    priority: str = ""
    ut_id: Expr | None = None
    index: Expr | None = None
    save_address: bool = False


@dataclass(frozen=True)
class DsdOp:
    """A DSD operation such as ``@fmacs``.

    Attributes:
        op: name without the ``@``.
        dest: a DSD or DSR, or a pointer to a scalar.
        sources: DSDs, DSRs or scalars in source order; scalars are already converted to the operation's element type.
        options: see :class:`OpOptions`.
        type: ``bool`` when the result may be asked for (FIFO operands), else ``void``.
    """

    type: Type
    op: str
    dest: Expr
    sources: tuple[Expr, ...]
    options: OpOptions = OpOptions()
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class MapOp:
    """``@map(callback, inputs..., output)``; an input or the output is a DSD/DSR (walked), a scalar, or a pointer."""

    callback: str
    inputs: tuple[Expr, ...]
    output: Expr | None
    type: Type = VOID
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Builtin:
    """Every other builtin that acts at run time.

    ``op`` is the name without ``@`` and the operands follow the documentation's order: ``activate(id)``, ``block(id)``,
    ``unblock(id)``, ``set_dsd_length(dsd, n)``, ``set_dsd_base_addr(dsd, address)``, ``set_dsd_stride(dsd, n)``,
    ``increment_dsd_offset(dsd, n)`` (``elem`` in ``types``), ``load_to_dsr(dsr, dsd)`` (``options`` set),
    ``set_fifo_read_length``/``set_fifo_write_length``, ``random16``, ``set_active_prng``, ``queue_flush``,
    ``get_config``/``set_config``, ``get_tensor_ptr``, ``get_symbol_value``; and ``intrinsic`` operations of our own
    libraries (``intrinsic`` holds the name, for example ``math.sqrt``).
    """

    type: Type
    op: str
    args: tuple[Expr, ...]
    types: tuple[Type, ...] = ()
    options: OpOptions | None = None
    intrinsic: str = ""
    texts: tuple[str, ...] = ()
    pos: Position = field(default=NOWHERE, compare=False)


Expr: TypeAlias = (
    Const
    | GlobalAddr
    | FrameAddr
    | FunctionRef
    | DsdConst
    | Load
    | AddressOf
    | Unary
    | Binary
    | Compare
    | Logical
    | Select
    | Cast
    | Call
    | DsdMake
    | DsdOp
    | MapOp
    | Builtin
)


# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """Declares a local; without ``init`` its value is undefined."""

    local: Local
    init: Expr | None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Assign:
    """``place = value``; compound assignments are already written out."""

    place: Place
    value: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class CopyBytes:
    """Copies a whole array or struct; ``source`` None fills with zeros, ``bytes`` writes that image."""

    dest: MemRef
    source: MemRef | bytes | None
    size: int
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class ExprStmt:
    """An expression evaluated for its effect."""

    expr: Expr
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Block:
    """Statements; ``label`` can be the target of a ``Break``."""

    body: tuple[Stmt, ...]
    label: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class If:
    """Run-time condition."""

    cond: Expr
    then: tuple[Stmt, ...]
    other: tuple[Stmt, ...] = ()
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class While:
    """``while (cond) : (step) body``; ``step`` also runs after ``continue``."""

    cond: Expr
    body: tuple[Stmt, ...]
    step: tuple[Stmt, ...] = ()
    label: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class ForRange:
    """``for (@range(T, start, stop, step))``; ``step`` is a non-zero constant or a run-time value."""

    local: Local
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Stmt, ...]
    label: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class SwitchCase:
    """One arm: the values that choose it (inclusive ``(low, high)`` pairs)."""

    ranges: tuple[tuple[int, int], ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Switch:
    """Integer, enum or bool switch; arms do not fall through."""

    value: Expr
    cases: tuple[SwitchCase, ...]
    default: tuple[Stmt, ...] = ()
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Break:
    """Leaves the loop or block with this label, or the innermost loop."""

    label: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Continue:
    """Next iteration of the loop with this label, or of the innermost loop."""

    label: str = ""
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Return:
    """Leaves the function."""

    value: Expr | None = None
    pos: Position = field(default=NOWHERE, compare=False)


@dataclass(frozen=True)
class Assert:
    """``@assert``: the simulator stops with ``text`` and the position when the condition is false."""

    cond: Expr
    text: str
    pos: Position = field(default=NOWHERE, compare=False)


Stmt: TypeAlias = (
    Let | Assign | CopyBytes | ExprStmt | Block | If | While | ForRange | Switch | Break | Continue | Return | Assert
)
