"""Literals, operators, conditional values, struct and array values, type expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from wsesim.csl.program import typed_tree as tree
from wsesim.csl.sema import types as t
from wsesim.csl.sema.access import Access
from wsesim.csl.sema.coerce import coerce, peer_type, type_of_value
from wsesim.csl.sema.modules import stop
from wsesim.csl.sema.numeric import fits, fold_binary, fold_compare, round_float, wrap
from wsesim.csl.sema.values import CV, UNDEFINED, VOID_VALUE, ArrayValue, Operand
from wsesim.csl.syntax import nodes as s

if TYPE_CHECKING:
    from wsesim.csl.syntax.source import Position

__all__ = ["Operators", "string_value"]

_ESCAPES = {"n": 10, "t": 9, "r": 13, "0": 0, "\\": 92, '"': 34, "'": 39}
_ARITHMETIC = frozenset(["+", "-", "*", "/", "%", "&", "|", "^"])
_SHIFTS = frozenset(("<<", ">>"))
_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">="))


def string_value(text: str) -> bytes:
    r"""The bytes of a literal as written, quotes included.

    >>> string_value(r'"a\x41\n"')
    b'aA\n'
    """
    out, body, at = bytearray(), text[1:-1], 0
    while at < len(body):
        if body[at] != "\\":
            out += body[at].encode()
            at += 1
        elif body[at + 1] == "x":
            out.append(int(body[at + 2 : at + 4], 16))
            at += 4
        else:
            out.append(_ESCAPES.get(body[at + 1], ord(body[at + 1]) & 0xFF))
            at += 2
    return bytes(out)


class Operators(Access):
    """Expressions without calls."""

    # --- literals ---

    @staticmethod
    def int_literal(node: s.IntLiteral) -> CV:
        """An integer."""
        return CV(t.COMPTIME_INT, node.value)

    @staticmethod
    def float_literal(node: s.FloatLiteral) -> CV:
        """A float."""
        return CV(t.COMPTIME_FLOAT, node.value)

    @staticmethod
    def bool_literal(node: s.BoolLiteral) -> CV:
        """``true`` or ``false``."""
        return CV(t.BOOL, node.value)

    @staticmethod
    def string_literal(node: s.StringLiteral) -> CV:
        """A string."""
        return CV(t.COMPTIME_STRING, string_value(node.text))

    @staticmethod
    def char_literal(node: s.CharLiteral) -> CV:
        """A character: its code."""
        value = string_value(node.text)
        if len(value) != 1:
            stop("bad-character", "a character literal holds one byte", node.pos, "use a string", len(node.text))
        return CV(t.COMPTIME_INT, value[0])

    # --- unary ---

    def unary(self, node: s.Unary) -> Operand:
        """``-x ~x !x &x``."""
        if node.op == "&":
            return self.address(node)
        operand, pos = self.eval(node.operand), node.pos
        kind = operand.type
        if node.op == "!":
            if kind != t.BOOL:
                stop("type-mismatch", f"'!' needs a bool, found {kind}", pos)
        elif node.op == "~":
            if not isinstance(kind, t.IntType):
                stop("type-mismatch", f"'~' needs a fixed-width integer, found {kind}", pos, "@as(u16, x), for example")
        elif not (isinstance(kind, t.IntType | t.FloatType) or kind in (t.COMPTIME_INT, t.COMPTIME_FLOAT)):
            stop("type-mismatch", f"'-' needs a number, found {kind}", pos)
        if not isinstance(operand, CV):
            return tree.Unary(kind, node.op, operand, pos=pos)
        match node.op:
            case "!":
                return CV(t.BOOL, not operand.value)
            case "~":
                assert isinstance(kind, t.IntType)
                return CV(kind, wrap(~operand.value, kind))
            case _:
                value = -operand.value
                if isinstance(kind, t.IntType) and not fits(value, kind):
                    self._overflow(value, kind, pos)
                return CV(kind, value)

    # --- binary ---

    def binary(self, node: s.Binary) -> Operand:
        """An infix operation."""
        if node.op in ("and", "or"):
            return self._logical(node)
        left, right = self.eval(node.left), self.eval(node.right)
        return self.apply(node.op, left, right, node.pos)

    def apply(self, op: str, left: Operand, right: Operand, pos: Position) -> Operand:
        """``left op right`` after bringing both to one type."""
        if op in _SHIFTS:
            return self._shift(op, left, right, pos)
        if op in _COMPARISONS:
            return self._compare(op, left, right, pos)
        kind = peer_type(left, right, pos, op)
        numeric = isinstance(kind, t.IntType | t.FloatType) or kind in (t.COMPTIME_INT, t.COMPTIME_FLOAT)
        if not numeric:
            stop("type-mismatch", f"'{op}' needs numbers, found {kind}", pos)
        if op in ("&", "|", "^") and not (isinstance(kind, t.IntType) or kind is t.COMPTIME_INT):
            stop("type-mismatch", f"'{op}' needs integers, found {kind}", pos)
        left, right = coerce(left, kind, pos), coerce(right, kind, pos)
        if isinstance(left, CV) and isinstance(right, CV):
            return self._fold(op, left, right, kind, pos)
        return tree.Binary(kind, op, self.runtime(left, pos), self.runtime(right, pos), pos=pos)

    def _fold(self, op: str, left: CV, right: CV, kind: t.Type, pos: Position) -> CV:
        try:
            value = fold_binary(op, left.value, right.value, kind)
        except ZeroDivisionError:
            stop("division-by-zero", "division by zero", pos)
        except ValueError as problem:
            stop("type-mismatch", str(problem), pos)
        if isinstance(kind, t.IntType) and op in ("+", "-", "*", "/"):
            exact = fold_binary(op, left.value, right.value, t.COMPTIME_INT)
            if exact != value:
                self._overflow(exact, kind, pos)
        return CV(kind, value)

    @staticmethod
    def _overflow(value: int, kind: t.IntType, pos: Position) -> NoReturn:
        text = f"the result {value} does not fit type {kind} ({kind.minimum} to {kind.maximum})"
        stop("overflow", text, pos, "use a wider type")

    def _shift(self, op: str, left: Operand, right: Operand, pos: Position) -> Operand:
        for operand in (left, right):
            if not (isinstance(operand.type, t.IntType) or operand.type is t.COMPTIME_INT):
                stop("type-mismatch", f"'{op}' needs integers, found {operand.type}", pos)
        signed = isinstance(right.type, t.IntType) and right.type.signed
        if signed and not isinstance(right, CV) and self.unit.strict:
            stop("type-mismatch", f"the shift amount must be unsigned, found {right.type}", pos, "use @as(u16, ...)")
        if isinstance(left, CV) and isinstance(right, CV):
            if not 0 <= right.value <= 1 << 16:
                stop("out-of-range", f"cannot shift by {right.value}", pos)
            return CV(left.type, fold_binary(op, left.value, right.value, left.type))
        if left.type is t.COMPTIME_INT:
            left = coerce(left, right.type, pos)
        if isinstance(right, CV) and right.type is t.COMPTIME_INT:
            right = coerce(right, t.U16, pos)
        return tree.Binary(left.type, op, self.runtime(left, pos), self.runtime(right, pos), pos=pos)

    def _compare(self, op: str, left: Operand, right: Operand, pos: Position) -> Operand:
        if left.type is t.TYPE or right.type is t.TYPE:
            return self._compare_types(op, left, right, pos)
        kind = peer_type(left, right, pos, op)
        ordered = isinstance(kind, t.IntType | t.FloatType) or kind in (t.COMPTIME_INT, t.COMPTIME_FLOAT)
        equal = kind in (t.BOOL, t.DIRECTION, t.COMPTIME_STRING) or isinstance(
            kind, t.EnumType | t.HandleType | t.PtrType
        )
        if not (ordered or (equal and op in ("==", "!="))):
            stop("type-mismatch", f"values of type {kind} cannot be compared with '{op}'", pos)
        left, right = coerce(left, kind, pos), coerce(right, kind, pos)
        if isinstance(left, CV) and isinstance(right, CV):
            return CV(t.BOOL, fold_compare(op, left.value, right.value))
        return tree.Compare(op, self.runtime(left, pos), self.runtime(right, pos), pos=pos)

    @staticmethod
    def _compare_types(op: str, left: Operand, right: Operand, pos: Position) -> CV:
        if not (isinstance(left, CV) and isinstance(right, CV) and left.type is right.type) or op not in ("==", "!="):
            stop("type-mismatch", f"cannot compare {left.type} with {right.type} by '{op}'", pos)
        return CV(t.BOOL, (left.value == right.value) == (op == "=="))

    def _logical(self, node: s.Binary) -> Operand:
        left = self.condition(node.left)
        absorbing = node.op == "or"
        if isinstance(left, CV):
            return left if left.value == absorbing else self.condition(node.right)
        right = self.guarded(lambda: self.condition(node.right))
        if isinstance(right, CV) and right.value != absorbing:
            return left
        op = "or" if absorbing else "and"
        return tree.Logical(op, left, self.runtime(right, node.pos), pos=node.pos)

    def condition(self, node: s.Expr) -> Operand:
        """A bool."""
        found = self.eval(node)
        if found.type != t.BOOL:
            hint = "compare with zero: x != 0" if isinstance(found.type, t.IntType) else ""
            stop("type-mismatch", f"a condition must be a bool, found {found.type}", node.pos, hint)
        return found

    def guarded(self, action: Any) -> Any:
        """Evaluates something that may not run: nothing may be emitted before it."""
        if self.builder is None:
            return action()
        before, self.builder.may_emit = self.builder.may_emit, False
        try:
            return action()
        finally:
            self.builder.may_emit = before

    # --- conditional values ---

    def eval_to(self, node: s.Expr, kind: t.Type, what: str = "") -> Operand:
        """Value of an expression as a value of a type; the type reaches into the branches of conditional values."""
        if isinstance(node, s.IfExpr) and node.other is not None and kind != t.ANYTYPE:
            other_node = node.other
            cond = self.condition(node.cond)
            if isinstance(cond, CV):
                return self.eval_to(node.then if cond.value else other_node, kind, what)
            if self.at_comptime:
                self.not_comptime(node.cond.pos, "this condition")
            then = self.guarded(lambda: self.eval_to(node.then, kind, what))
            return self.select(cond, then, self.guarded(lambda: self.eval_to(other_node, kind, what)), node.pos)
        value = self.switch_value(node, kind) if isinstance(node, s.SwitchExpr) else self.eval(node)
        if isinstance(value, CV) and value.type is t.COMPTIME_STRUCT and isinstance(kind, t.StructType):
            return self.struct_value(value, kind, node.pos)
        return coerce(value, kind, node.pos, what)

    def if_value(self, node: s.IfExpr) -> Operand:
        """``if (c) a else b``."""
        cond = self.condition(node.cond)
        if isinstance(cond, CV):
            if cond.value:
                return self.eval(node.then)
            return VOID_VALUE if node.other is None else self.eval(node.other)
        if self.at_comptime:
            self.not_comptime(node.cond.pos, "this condition")
        then = self.guarded(lambda: self.eval(node.then))
        other_node = node.other
        if other_node is None:
            stop("type-mismatch", "an if without else has no value", node.pos, "add an else branch")
        other = self.guarded(lambda: self.eval(other_node))
        return self.select(cond, then, other, node.pos)

    def switch_value(self, node: s.SwitchExpr, kind: t.Type | None = None) -> Operand:
        """``switch`` used as a value, of type ``kind`` when one is wanted."""
        raise NotImplementedError

    def select(self, cond: tree.Expr, then: Operand, other: Operand, pos: Position) -> Operand:
        """One of two values, chosen at run time."""
        kind = peer_type(then, other, pos, "if")
        if t.is_comptime_only(kind):
            stop("comptime-only", f"a value of type {kind} cannot depend on a run-time condition", pos)
        first, second = (self.runtime(coerce(x, kind, pos), pos) for x in (then, other))
        return tree.Select(kind, cond, first, second, pos=pos)

    # --- aggregates ---

    def anon_struct(self, node: s.AnonStruct) -> CV:
        """``.{ ... }``; inside a function its fields may be run-time values."""
        fields: dict[str, Any] = {}
        for index, item in enumerate(node.fields):
            name = str(index) if item.name is None else item.name
            if name in fields:
                stop("duplicate-name", f"field '{name}' is given twice", item.pos)
            fields[name] = self.eval(item.value)
        named = sum(item.name is not None for item in node.fields)
        if named not in (0, len(node.fields)):
            stop("mixed-fields", "a struct has either named or nameless fields", node.pos)
        return CV(t.COMPTIME_STRUCT, fields)

    def init_list(self, node: s.InitList) -> Operand:
        """``type { ... }``."""
        kind = self.type(node.type)
        if isinstance(kind, t.StructType):
            return self.struct_value(self.anon_struct(s.AnonStruct(node.fields, pos=node.pos)), kind, node.pos)
        if not isinstance(kind, t.ArrayType):
            stop("type-mismatch", f"type {kind} takes no list of values", node.pos)
        if len(node.fields) != kind.count:
            stop("type-mismatch", f"{kind} needs {kind.count} elements, found {len(node.fields)}", node.pos)
        items = [coerce(self.eval(f.value), kind.elem, f.value.pos, "an element") for f in node.fields]
        if all(isinstance(i, CV) for i in items):
            return CV(kind, ArrayValue(kind.count, items=[i.value for i in items if isinstance(i, CV)]))
        return self.runtime_aggregate(kind, list(enumerate(items)), node.pos)

    def struct_value(self, value: CV, kind: t.StructType, pos: Position) -> Operand:
        """An anonymous struct as a value of a struct type."""
        known = all(isinstance(v, CV) for v in value.value.values())
        if known:
            return coerce(value, kind, pos)
        wanted = dict(kind.fields)
        if set(value.value) != set(wanted):
            stop("type-mismatch", f"{kind} has the fields {', '.join(wanted)}", pos)
        items = [(n, coerce(v, wanted[n], pos, f"field {n}")) for n, v in value.value.items()]
        return self.runtime_aggregate(kind, items, pos)

    def runtime_aggregate(self, kind: t.Type, items: list[tuple[int | str, Operand]], pos: Position) -> Operand:
        """An array or struct with run-time parts: built in the frame."""
        raise NotImplementedError

    # --- types ---

    def array_type(self, node: s.ArrayTypeExpr) -> CV:
        """``[n]T``."""
        elem = self.type(node.elem)
        if isinstance(elem, t.ArrayType):
            hint = "write all dimensions in one pair of brackets: [2, 3]T"
            stop("nested-array", "the element type must not be another array type", node.elem.pos, hint)
        dims = []
        for dim in node.dims:
            size = self.integer(dim, "an array's length")
            if not 0 <= size < 1 << 32:
                stop("out-of-range", f"an array cannot have {size} elements", dim.pos)
            dims.append(size)
        return CV(t.TYPE, t.ArrayType(tuple(dims), elem))

    def ptr_type(self, node: s.PtrTypeExpr) -> CV:
        """``*T`` and its relatives."""
        return CV(t.TYPE, t.PtrType(self.type(node.elem), node.const, node.many))

    def fn_type(self, node: s.FnTypeExpr) -> CV:
        """``fn(A) R``."""
        params = tuple(self.type(x) for x in node.params)
        return CV(t.TYPE, t.FnType(params, self.type(node.ret), node.is_task))

    def struct_type(self, node: s.StructTypeExpr) -> CV:
        """``struct { ... }``."""
        names = [name for name, _ in node.fields]
        if len(set(names)) != len(names):
            stop("duplicate-name", "a struct has two fields of the same name", node.pos)
        fields = tuple((name, self.type(kind)) for name, kind in node.fields)
        kind = t.StructType(fields, str(node.pos), "", node.layout, node.is_union)
        if node.layout == "packed" and node.is_union and len({t.bit_size(x) for _, x in fields}) > 1:
            stop("packed-union", "all fields of a packed union must have the same bit width", node.pos)
        return CV(t.TYPE, kind)

    def enum_type(self, node: s.EnumTypeExpr) -> CV:
        """``enum(T) { ... }``."""
        base = t.U16 if node.base is None else self.type(node.base)
        if not isinstance(base, t.IntType):
            stop("type-mismatch", f"an enum's type must be a fixed-width integer, found {base}", node.pos)
        given = {n: self.integer(v, f"the value of {n}") for n, v in node.members if v is not None}
        if len(set(given.values())) != len(given):
            stop("duplicate-value", "two members of the enum have the same value", node.pos)
        members, taken, following = [], set(given.values()), 0
        for name, _ in node.members:
            if name in given:
                members.append((name, given[name]))
                continue
            while following in taken:
                following += 1
            taken.add(following)
            members.append((name, following))
        if len({name for name, _ in members}) != len(members):
            stop("duplicate-name", "two members of the enum have the same name", node.pos)
        return CV(t.TYPE, t.EnumType(base, tuple(members), str(node.pos)))

    # --- constants ---

    def default_value(self, kind: t.Type) -> Any:
        """The value of an uninitialised comptime variable: undefined."""
        if isinstance(kind, t.ArrayType):
            return ArrayValue(kind.count, UNDEFINED)
        return None

    @staticmethod
    def zero(kind: t.Type, pos: Position) -> Any:
        """The zero of a numeric type."""
        match kind:
            case t.IntType() | t.ComptimeType(name="comptime_int"):
                return 0
            case t.FloatType() | t.ComptimeType(name="comptime_float"):
                return round_float(0.0, kind)
            case t.SimpleType(name="bool"):
                return False
            case _:
                stop("type-mismatch", f"there is no zero of type {kind}", pos, "@zeros takes numeric arrays")
        return None

    def full_type(self, operand: Operand) -> t.Type:
        """The type of an operand; that of an anonymous struct is built from its fields."""
        return type_of_value(operand) if isinstance(operand, CV) else operand.type
