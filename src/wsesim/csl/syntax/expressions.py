"""The expression half of the parser: precedence climbing, postfix forms, types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NoReturn, cast

from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.lexer import KEYWORDS, Token

if TYPE_CHECKING:
    from wsesim.csl.syntax.diagnostics import Diagnostics
    from wsesim.csl.syntax.source import Position, Source

__all__ = ["PRECEDENCE", "ExpressionParser", "Unexpected"]

PRECEDENCE = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3),
    **dict.fromkeys(("|", "^", "&"), 4),
    **dict.fromkeys(("<<", ">>"), 5),
    **dict.fromkeys(("+", "-"), 6),
    **dict.fromkeys(("*", "/", "%"), 7),
}
_MAX_DEPTH = 120


class Unexpected(Exception):
    """A syntax error on its way to the place that can recover."""

    def __init__(self, message: str, pos: Position, length: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.pos, self.length, self.hint = message, pos, length, hint


class ExpressionParser:
    """Token cursor and expressions."""

    def __init__(self, source: Source, tokens: list[Token], diagnostics: Diagnostics) -> None:
        self.source, self.tokens, self.diagnostics = source, tokens, diagnostics
        self.at = 0
        self.depth = 0
        self.blocks = 0  # that are open

    # --- cursor ---

    @property
    def token(self) -> Token:
        """The token under the cursor."""
        return self.tokens[self.at]

    def peek(self, ahead: int) -> Token:
        """The token ``ahead`` places further."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def pos(self) -> Position:
        """Where the token under the cursor starts."""
        return self.source.position(self.tokens[self.at].offset)

    def advance(self) -> Token:
        """Takes the token under the cursor."""
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Takes the operator or keyword ``text`` if it is next."""
        token = self.tokens[self.at]
        if token.text != text or token.kind not in ("op", "keyword"):
            return False
        self.at += 1
        return True

    def expect(self, text: str, wanted: str = "", hint: str = "") -> None:
        """Takes ``text`` or fails."""
        if not self.accept(text):
            raise self.unexpected(wanted or f"'{text}'", hint)

    def end_statement(self, what: str) -> None:
        """Takes the closing ``;``; a missing one is reported right after the token before it, and parsing goes on."""
        if self.accept(";"):
            return
        before = self.tokens[self.at - 1]
        token = self.token
        starts_line = self.source.position(token.offset).line > self.source.position(before.offset).line
        if starts_line or token.text == "}":
            where = self.source.position(before.offset + len(before.text))
            self.diagnostics.error("missing-semicolon", f"expected ';' after {what}", where, 1, "add ';'")
            return
        raise self.unexpected(f"';' after {what}")

    def identifier(self, wanted: str) -> str:
        """Takes a name."""
        token = self.token
        if token.kind != "name":
            hint = f"'{token.text}' is a keyword" if token.text in KEYWORDS else ""
            raise self.unexpected(wanted, hint)
        return self.advance().text

    def unexpected(self, wanted: str, hint: str = "") -> Unexpected:
        """The error "expected this, found that" at the cursor."""
        token = self.token
        found = "the end of the file" if token.kind == "end" else f"'{token.text}'"
        return Unexpected(f"expected {wanted}, found {found}", self.pos(), max(1, len(token.text)), hint)

    def report(self, problem: Unexpected) -> None:
        """Keeps a syntax error."""
        self.diagnostics.error("syntax", problem.message, problem.pos, problem.length, problem.hint)

    def _too_deep(self) -> NoReturn:
        raise Unexpected("the expression is nested too deeply", self.pos(), 1, "name its parts with const")

    # --- operators ---

    def expression(self, *, no_init: bool = False) -> s.Expr:
        """Any expression."""
        self.depth += 1
        try:
            if self.depth > _MAX_DEPTH:
                self._too_deep()
            return self._binary(1, no_init)
        finally:
            self.depth -= 1

    def type_expr(self, *, no_init: bool = False) -> s.Expr:
        """An expression where a type is expected; ``no_init`` leaves a following ``{`` alone."""
        self.depth += 1
        try:
            if self.depth > _MAX_DEPTH:
                self._too_deep()
            return self._unary(no_init=no_init)
        finally:
            self.depth -= 1

    def _binary(self, lowest: int, no_init: bool) -> s.Expr:
        left = self._unary(no_init=no_init)
        while True:
            token = self.token
            level = PRECEDENCE.get(token.text, 0) if token.kind in ("op", "keyword") else 0
            if level < lowest:
                return left
            pos = self.pos()
            self.advance()
            right = self._binary(level + 1, no_init)
            if level == 3 and PRECEDENCE.get(self.token.text) == 3 and self.token.kind == "op":
                raise self.unexpected(
                    "'and' or 'or' between comparisons", "comparisons do not chain: write a < b and b < c"
                )
            left = s.Binary(token.text, left, right, pos=pos)

    def _unary(self, *, no_init: bool) -> s.Expr:
        token, pos = self.token, self.pos()
        if token.kind == "op" and token.text in ("-", "!", "~", "&", "*"):
            self.depth += 1
            if self.depth > _MAX_DEPTH:
                self._too_deep()
            self.advance()
            try:
                if token.text == "*":
                    const = self.accept("const")
                    return s.PtrTypeExpr(self._unary(no_init=no_init), const, False, pos=pos)
                op = cast("Literal['-', '!', '~', '&']", token.text)
                return s.Unary(op, self._unary(no_init=no_init), pos=pos)
            finally:
                self.depth -= 1
        if token.kind == "keyword" and token.text == "comptime":
            self.advance()
            return s.ComptimeExpr(self._unary(no_init=no_init), pos=pos)
        return self._postfix(self._primary(no_init), no_init)

    def _postfix(self, base: s.Expr, no_init: bool) -> s.Expr:
        while self.token.kind == "op":
            pos = self.pos()
            match self.token.text:
                case "(":
                    self.advance()
                    base = s.Call(base, self._list(")"), pos=pos)
                case "[":
                    self.advance()
                    indices = self._list("]")
                    if not indices:
                        raise self.unexpected("an index before ']'")
                    base = s.Index(base, indices, pos=pos)
                case ".*":
                    self.advance()
                    base = s.Deref(base, pos=pos)
                case ".":
                    self.advance()
                    base = s.Field(base, self._field_name(), pos=pos)
                case "{" if not no_init and self._starts_init(base):
                    self.advance()
                    base = s.InitList(base, self._init_fields(), pos=base.pos)
                case _:
                    return base
        return base

    def _starts_init(self, base: s.Expr) -> bool:
        """Whether the ``{`` after a type's name opens its fields, which are named (or absent)."""
        named = isinstance(base, s.Name | s.Call | s.Field | s.StructTypeExpr | s.BuiltinCall)
        return named and self.peek(1).text in (".", "}")

    def _field_name(self) -> str:
        # A field may be called like a keyword (`.align`, `.param`).
        if self.token.kind in ("name", "keyword"):
            return self.advance().text
        raise self.unexpected("a field name after '.'")

    def _list(self, close: str) -> tuple[s.Expr, ...]:
        items: list[s.Expr] = []
        while self.token.text != close or self.token.kind != "op":
            items.append(self.expression())
            if not self.accept(","):
                break
        self.expect(close, f"',' or '{close}'")
        return tuple(items)

    # --- primaries ---

    def _primary(self, no_init: bool) -> s.Expr:
        token, pos = self.token, self.pos()
        match token.kind:
            case "int":
                self.advance()
                return s.IntLiteral(token.text, pos=pos)
            case "float":
                self.advance()
                return s.FloatLiteral(token.text, pos=pos)
            case "string":
                self.advance()
                return s.StringLiteral(token.text, pos=pos)
            case "char":
                self.advance()
                return s.CharLiteral(token.text, pos=pos)
            case "name":
                if self.peek(1).text == ":" and self.peek(2).text == "{" and self.peek(1).kind == "op":
                    return self._block_value(pos)
                self.advance()
                return s.Name(token.text, pos=pos)
            case "builtin":
                self.advance()
                self.expect("(", f"'(' after {token.text}")
                return s.BuiltinCall(token.text[1:], self._list(")"), pos=pos)
            case "keyword":
                return self._keyword(no_init)
            case "op":
                return self._bracketed(no_init)
            case _:
                raise self.unexpected("an expression")

    def _keyword(self, no_init: bool) -> s.Expr:
        token, pos = self.token, self.pos()
        match token.text:
            case "true" | "false":
                self.advance()
                return s.BoolLiteral(token.text == "true", pos=pos)
            case "if":
                return self._if_value()
            case "switch":
                return self._switch_value()
            case "fn" | "task":
                self.advance()
                self.expect("(")
                params = self._list(")")
                return s.FnTypeExpr(params, self.type_expr(no_init=no_init), token.text == "task", pos=pos)
            case "struct" | "union" | "extern" | "packed":
                return self._struct()
            case "enum":
                return self._enum()
            case _:
                raise self.unexpected("an expression")

    def _bracketed(self, no_init: bool) -> s.Expr:
        token, pos = self.token, self.pos()
        match token.text:
            case "(":
                self.advance()
                inner = self.expression()
                self.expect(")")
                return inner
            case ".{":
                self.advance()
                return s.AnonStruct(self._init_fields(), pos=pos)
            case "[":
                return self._array_type(no_init)
            case "|":
                return self._tensor_access()
            case "{":
                return self._block_value(pos)
            case _:
                raise self.unexpected("an expression")

    def _init_fields(self) -> tuple[s.FieldInit, ...]:
        """The inside of ``{ ... }`` after its opening, and the closing brace."""
        fields: list[s.FieldInit] = []
        while self.token.text != "}" or self.token.kind != "op":
            pos = self.pos()
            if self.token.text == "." and self.token.kind == "op":
                self.advance()
                name = self._field_name()
                self.expect("=", f"'=' after .{name}")
                fields.append(s.FieldInit(name, self.expression(), pos=pos))
            else:
                fields.append(s.FieldInit(None, self.expression(), pos=pos))
            if not self.accept(","):
                break
        self.expect("}", "',' or '}'")
        return tuple(fields)

    def _array_type(self, no_init: bool) -> s.Expr:
        pos = self.pos()
        self.advance()
        if self.token.text == "*" and self.peek(1).text == "]":
            self.advance()
            self.advance()
            const = self.accept("const")
            return s.PtrTypeExpr(self._unary(no_init=no_init), const, True, pos=pos)
        dims = self._list("]")
        if not dims:
            raise self.unexpected("an array's length before ']'")
        found = s.ArrayTypeExpr(dims, self._unary(no_init=True), pos=pos)
        if not no_init and self.accept("{"):
            return s.InitList(found, self._init_fields(), pos=pos)
        return found

    def _tensor_access(self) -> s.TensorAccess:
        pos = self.pos()
        self.advance()
        names = [self.identifier("an induction variable")]
        while self.accept(","):
            names.append(self.identifier("an induction variable"))
        self.expect("|")
        self.expect("{", "'{' and the lengths")
        lengths = self._list("}")
        self.expect("->")
        target = self._unary(no_init=True)
        if len(lengths) != len(names):
            text = f"{len(names)} induction variables need as many lengths, found {len(lengths)}"
            raise Unexpected(text, pos, 1)
        return s.TensorAccess(tuple(names), lengths, target, pos=pos)

    def _if_value(self) -> s.IfExpr:
        pos = self.pos()
        self.advance()
        self.expect("(", "'(' after if")
        cond = self.expression()
        self.expect(")")
        then = self.expression()
        other = self.expression() if self.accept("else") else None
        return s.IfExpr(cond, then, other, pos=pos)

    def switch_items(self) -> tuple[s.Expr | tuple[s.Expr, s.Expr], ...]:
        """The values of a switch arm up to and with ``=>``; empty for ``else``."""
        items: list[s.Expr | tuple[s.Expr, s.Expr]] = []
        if not self.accept("else"):
            while True:
                low = self.expression()
                items.append((low, self.expression()) if self.accept("...") else low)
                if not self.accept(",") or self.token.text == "=>":
                    break
        self.expect("=>")
        return tuple(items)

    def _switch_value(self) -> s.SwitchExpr:
        pos = self.pos()
        self.advance()
        self.expect("(", "'(' after switch")
        value = self.expression()
        self.expect(")")
        self.expect("{")
        arms: list[s.SwitchArm] = []
        while self.token.text != "}":
            arm = self.pos()
            arms.append(s.SwitchArm(self.switch_items(), self.expression(), pos=arm))
            if not self.accept(","):
                break
        self.expect("}", "',' and another arm, or '}'")
        return s.SwitchExpr(value, tuple(arms), pos=pos)

    def _block_value(self, pos: Position) -> s.BlockExpr:
        label = ""
        if self.token.kind == "name":
            label = self.advance().text
            self.advance()
        return s.BlockExpr(self.block(label), pos=pos)

    def block(self, label: str = "") -> s.Block:
        """A block of statements (given by the statement parser)."""
        raise NotImplementedError(label)

    def _struct(self) -> s.StructTypeExpr:
        pos, layout = self.pos(), "auto"
        if self.token.text in ("extern", "packed"):
            layout = self.advance().text
        if self.token.text not in ("struct", "union"):
            raise self.unexpected("struct or union")
        is_union = self.advance().text == "union"
        self.expect("{")
        fields: list[tuple[str, s.Expr]] = []
        while self.token.text != "}":
            name = self._field_name()
            self.expect(":", f"':' and the type of field {name}")
            fields.append((name, self.type_expr()))
            if not self.accept(","):
                break
        self.expect("}", "',' or '}'")
        kind = cast("Literal['auto', 'extern', 'packed']", layout)
        return s.StructTypeExpr(tuple(fields), kind, is_union, pos=pos)

    def _enum(self) -> s.EnumTypeExpr:
        pos = self.pos()
        self.advance()
        base = None
        if self.accept("("):
            base = self.type_expr()
            self.expect(")")
        self.expect("{", "'(' and the enum's integer type, or '{'")
        members: list[tuple[str, s.Expr | None]] = []
        while self.token.text != "}":
            name = self.identifier("a member's name")
            members.append((name, self.expression() if self.accept("=") else None))
            if not self.accept(","):
                break
        self.expect("}", "',' or '}'")
        return s.EnumTypeExpr(base, tuple(members), pos=pos)
