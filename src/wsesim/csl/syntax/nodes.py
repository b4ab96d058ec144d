"""The syntax tree: frozen nodes that compare by content, not by place.

The parser builds it, the printer turns it back into text, and a generator may build it by hand. Types are expressions,
as in the language. :class:`Comment` exists for generators only: the printer writes it, the parser drops comments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from wsesim.csl.syntax.source import NOWHERE, Position

__all__ = [
    "AnonStruct",
    "ArrayTypeExpr",
    "Assignment",
    "Binary",
    "Block",
    "BlockExpr",
    "BoolLiteral",
    "BreakStmt",
    "BuiltinCall",
    "Call",
    "CharLiteral",
    "Comment",
    "ComptimeBlock",
    "ComptimeExpr",
    "ContinueStmt",
    "Decl",
    "Deref",
    "EnumTypeExpr",
    "Expr",
    "ExpressionStmt",
    "Field",
    "FieldInit",
    "File",
    "FloatLiteral",
    "FnTypeExpr",
    "ForStmt",
    "FunctionDecl",
    "IfExpr",
    "IfStmt",
    "Index",
    "InitList",
    "IntLiteral",
    "LayoutBlock",
    "Name",
    "Node",
    "ParamDecl",
    "Parameter",
    "PtrTypeExpr",
    "ReturnStmt",
    "Stmt",
    "StringLiteral",
    "StructTypeExpr",
    "SwitchArm",
    "SwitchExpr",
    "SwitchStmt",
    "TensorAccess",
    "Unary",
    "VarDecl",
    "WhileStmt",
]


@dataclass(frozen=True, kw_only=True)
class Node:
    """Base: every node knows where it starts; the place does not count in comparisons."""

    pos: Position = field(default=NOWHERE, compare=False, repr=False)


# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name(Node):
    """An identifier, type names included."""

    id: str


@dataclass(frozen=True)
class IntLiteral(Node):
    """An integer as written, for example ``0x1f``."""

    text: str

    @property
    def value(self) -> int:
        """The number."""
        digits = self.text.replace("_", "")
        return int(digits) if digits.isdecimal() else int(digits, 0)  # a leading zero is decimal


@dataclass(frozen=True)
class FloatLiteral(Node):
    """A float as written."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        text = self.text.replace("_", "")
        return float.fromhex(text) if text[:2] in ("0x", "0X") else float(text)


@dataclass(frozen=True)
class BoolLiteral(Node):
    """``true`` or ``false``."""

    value: bool


@dataclass(frozen=True)
class StringLiteral(Node):
    """A string as written, quotes and escapes included."""

    text: str


@dataclass(frozen=True)
class CharLiteral(Node):
    """A character as written, quotes included."""

    text: str


@dataclass(frozen=True)
class Unary(Node):
    """``-x``, ``!x``, ``~x`` or ``&x``."""

    op: Literal["-", "!", "~", "&"]
    operand: Expr


@dataclass(frozen=True)
class Binary(Node):
    """An infix operation; ``op`` as written (``and``/``or`` included)."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Call(Node):
    """``function(args)``."""

    function: Expr
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class BuiltinCall(Node):
    """``@name(args)``; ``name`` without the ``@``."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Field(Node):
    """``base.name``."""

    base: Expr
    name: str


@dataclass(frozen=True)
class Deref(Node):
    """``base.*``."""

    base: Expr


@dataclass(frozen=True)
class Index(Node):
    """``base[i, j]``."""

    base: Expr
    indices: tuple[Expr, ...]


@dataclass(frozen=True)
class FieldInit(Node):
    """``.name = value``, or a bare value when ``name`` is None."""

    name: str | None
    value: Expr


@dataclass(frozen=True)
class AnonStruct(Node):
    """``.{ ... }``."""

    fields: tuple[FieldInit, ...]


@dataclass(frozen=True)
class InitList(Node):
    """``type { ... }``: an array's elements or a struct's fields."""

    type: Expr
    fields: tuple[FieldInit, ...]


@dataclass(frozen=True)
class TensorAccess(Node):
    """``|i, j|{n, m} -> a[i, j]``."""

    variables: tuple[str, ...]
    lengths: tuple[Expr, ...]
    target: Expr


@dataclass(frozen=True)
class IfExpr(Node):
    """``if (cond) then else other`` as a value; ``other`` may be absent."""

    cond: Expr
    then: Expr
    other: Expr | None


@dataclass(frozen=True)
class SwitchArm(Node):
    """One arm; ``items`` are values or inclusive ``(low, high)`` pairs, empty for ``else``."""

    items: tuple[Expr | tuple[Expr, Expr], ...]
    body: Stmt | Expr


@dataclass(frozen=True)
class SwitchExpr(Node):
    """``switch (value) { ... }`` as a value."""

    value: Expr
    arms: tuple[SwitchArm, ...]


@dataclass(frozen=True)
class BlockExpr(Node):
    """A block used as a value; ``break :label value`` gives it."""

    body: Block


@dataclass(frozen=True)
class ComptimeExpr(Node):
    """``comptime expr``."""

    operand: Expr


@dataclass(frozen=True)
class ArrayTypeExpr(Node):
    """``[a, b]elem``."""

    dims: tuple[Expr, ...]
    elem: Expr


@dataclass(frozen=True)
class PtrTypeExpr(Node):
    """``*T``, ``*const T``, ``[*]T``, ``[*]const T``."""

    elem: Expr
    const: bool = False
    many: bool = False


@dataclass(frozen=True)
class FnTypeExpr(Node):
    """``fn(A, B) R``, or a task type."""

    params: tuple[Expr, ...]
    ret: Expr
    is_task: bool = False


@dataclass(frozen=True)
class StructTypeExpr(Node):
    """``struct { name: type, ... }`` or ``union { ... }``, with ``extern``/``packed`` in ``layout``."""

    fields: tuple[tuple[str, Expr], ...]
    layout: Literal["auto", "extern", "packed"] = "auto"
    is_union: bool = False


@dataclass(frozen=True)
class EnumTypeExpr(Node):
    """``enum(base) { a, b = 2 }``; the base may be left out."""

    base: Expr | None
    members: tuple[tuple[str, Expr | None], ...]


Expr: TypeAlias = (
    Name
    | IntLiteral
    | FloatLiteral
    | BoolLiteral
    | StringLiteral
    | CharLiteral
    | Unary
    | Binary
    | Call
    | BuiltinCall
    | Field
    | Deref
    | Index
    | AnonStruct
    | InitList
    | TensorAccess
    | IfExpr
    | SwitchExpr
    | BlockExpr
    | ComptimeExpr
    | ArrayTypeExpr
    | PtrTypeExpr
    | FnTypeExpr
    | StructTypeExpr
    | EnumTypeExpr
)


# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block(Node):
    """``{ ... }``."""

    body: tuple[Stmt, ...]
    label: str = ""


@dataclass(frozen=True)
class VarDecl(Node):
    """``const``/``var``, at the top or inside a function."""

    name: str
    type: Expr | None
    init: Expr | None
    const: bool = False
    storage: Literal["", "export", "extern"] = ""
    align: Expr | None = None
    section: Expr | None = None
    is_comptime: bool = False
    linkname: Expr | None = None


@dataclass(frozen=True)
class ExpressionStmt(Node):
    """``expr;``."""

    expr: Expr


@dataclass(frozen=True)
class Assignment(Node):
    """``target op value;`` with ``op`` one of ``= += -= ...``."""

    target: Expr
    op: str
    value: Expr


@dataclass(frozen=True)
class IfStmt(Node):
    """``if (cond) then else other``."""

    cond: Expr
    then: Stmt
    other: Stmt | None = None


@dataclass(frozen=True)
class WhileStmt(Node):
    """``while (cond) : (step) body``."""

    cond: Expr
    step: Stmt | None
    body: Stmt
    label: str = ""
    is_comptime: bool = False


@dataclass(frozen=True)
class ForStmt(Node):
    """``for (iterable) |item, index| body``."""

    iterable: Expr
    item: str
    index: str | None
    body: Stmt
    label: str = ""
    is_comptime: bool = False


@dataclass(frozen=True)
class SwitchStmt(Node):
    """``switch (value) { ... }`` for its effect."""

    value: Expr
    arms: tuple[SwitchArm, ...]


@dataclass(frozen=True)
class BreakStmt(Node):
    """``break``, ``break :label``, ``break :label value``."""

    label: str = ""
    value: Expr | None = None


@dataclass(frozen=True)
class ContinueStmt(Node):
    """``continue``, ``continue :label``."""

    label: str = ""


@dataclass(frozen=True)
class ReturnStmt(Node):
    """``return``, ``return value``."""

    value: Expr | None = None


@dataclass(frozen=True)
class ComptimeBlock(Node):
    """``comptime { ... }``, at the top or inside a function."""

    body: Block


@dataclass(frozen=True)
class Comment(Node):
    """``// text``, written by generators; every line of ``text`` becomes one comment line."""

    text: str


Stmt: TypeAlias = (
    Block
    | VarDecl
    | ExpressionStmt
    | Assignment
    | IfStmt
    | WhileStmt
    | ForStmt
    | SwitchStmt
    | BreakStmt
    | ContinueStmt
    | ReturnStmt
    | ComptimeBlock
    | Comment
)


# --- declarations ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter(Node):
    """A parameter of a function; ``comptime name: type``."""

    name: str
    type: Expr
    is_comptime: bool = False


@dataclass(frozen=True)
class FunctionDecl(Node):
    """``fn`` or ``task``; ``body`` is None for ``extern fn``."""

    name: str
    params: tuple[Parameter, ...]
    ret: Expr
    body: Block | None
    is_task: bool = False
    storage: Literal["", "export", "extern"] = ""
    is_inline: bool = False
    linkname: Expr | None = None


@dataclass(frozen=True)
class ParamDecl(Node):
    """``param name: type = default;``."""

    name: str
    type: Expr | None = None
    default: Expr | None = None


@dataclass(frozen=True)
class LayoutBlock(Node):
    """``layout { ... }``."""

    body: Block


Decl: TypeAlias = ParamDecl | VarDecl | FunctionDecl | LayoutBlock | ComptimeBlock | Comment


@dataclass(frozen=True)
class File(Node):
    """One source file."""

    decls: tuple[Decl, ...]
