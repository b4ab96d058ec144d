"""Tokens to syntax tree, with error recovery: one run reports several errors.

A recursive descent parser. After an error the rest of the statement is skipped (to its ``;`` or the end of its block),
at the top level the rest of the declaration; the tree then lacks that piece, and the error is in the diagnostics.
"""

from __future__ import annotations

from typing import Literal, cast

from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.diagnostics import CompileError, Diagnostics
from wsesim.csl.syntax.expressions import ExpressionParser, Unexpected
from wsesim.csl.syntax.lexer import tokenize
from wsesim.csl.syntax.source import Source

__all__ = ["Parser", "parse", "parse_text"]

_ASSIGN = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
_TOP_LEVEL = frozenset(("param", "const", "var", "fn", "task", "layout", "comptime", "export", "extern"))
Storage = Literal["", "export", "extern"]


def parse_text(text: str, name: str = "<text>") -> s.File:
    """The tree of a program text.

    Raises:
        CompileError: with every syntax error found.

    >>> parse_text("param n: u16;").decls[0].name
    'n'
    """
    diagnostics = Diagnostics()
    tree = parse(Source(name, text), diagnostics)
    if diagnostics.errors:
        raise CompileError(diagnostics.items, diagnostics.sources)
    return tree


def parse(source: Source, diagnostics: Diagnostics) -> s.File:
    """The tree of a source; errors go to ``diagnostics`` and the tree holds what could be read."""
    diagnostics.sources[source.name] = source
    parser = Parser(source, tokenize(source, diagnostics), diagnostics)
    try:
        return parser.file()
    except RecursionError:
        diagnostics.error("too-deep", "the program is nested too deeply to be read", source.position(0))
        return s.File(())


# Blocks inside each other: a limit of our own, whatever Python's is.
MAX_BLOCKS = 120


class Parser(ExpressionParser):
    """Declarations and statements; expressions are in the base class."""

    # --- declarations ---

    def file(self) -> s.File:
        """A whole file."""
        decls: list[s.Decl] = []
        while self.token.kind != "end":
            start = self.at
            try:
                decl = self.declaration()
                if decl is not None:
                    decls.append(decl)
            except Unexpected as problem:
                self.report(problem)
                self._skip_declaration(start)
        return s.File(tuple(decls), pos=self.source.position(0))

    def declaration(self) -> s.Decl | None:
        """One top-level declaration; None for a stray ``;``."""
        pos, token = self.pos(), self.token
        if self.accept(";"):
            return None
        match token.text:
            case "param":
                return self._param()
            case "layout":
                self.advance()
                return s.LayoutBlock(self.block(), pos=pos)
            case "comptime":
                self.advance()
                return s.ComptimeBlock(self.block(), pos=pos)
            case "export" | "extern":
                self.advance()
                storage = cast("Storage", token.text)
                return self._function(storage) if self.token.text in ("fn", "task") else self._variable(storage)
            case "fn" | "task":
                return self._function("")
            case "const" | "var":
                return self._variable("")
            case "inline" if self.peek(1).text == "fn":
                self.advance()
                return self._function("", inline=True)
            case _:
                raise self.unexpected("a declaration (param, const, var, fn, task, layout or comptime)")

    def _param(self) -> s.ParamDecl:
        pos = self.pos()
        self.advance()
        name = self.identifier("the parameter's name")
        kind = self.type_expr() if self.accept(":") else None
        default = self.expression() if self.accept("=") else None
        self.end_statement("the parameter")
        return s.ParamDecl(name, kind, default, pos=pos)

    def _variable(self, storage: Storage, *, is_comptime: bool = False) -> s.VarDecl:
        pos = self.pos()
        if self.token.text not in ("const", "var"):
            raise self.unexpected("const or var")
        const = self.advance().text == "const"
        name = self.identifier("the variable's name")
        kind = self.type_expr() if self.accept(":") else None
        extra = self._attributes()
        init = self.expression() if self.accept("=") else None
        self.end_statement("the declaration")
        align, section, linkname = (extra.get(word) for word in ("align", "linksection", "linkname"))
        return s.VarDecl(name, kind, init, const, storage, align, section, is_comptime, linkname, pos=pos)

    def _attributes(self) -> dict[str, s.Expr]:
        """``align(..)``, ``linksection(..)``, ``linkname(..)`` in any order."""
        found: dict[str, s.Expr] = {}
        while self.token.text in ("align", "linksection", "linkname"):
            word = self.advance().text
            self.expect("(")
            found[word] = self.expression()
            self.expect(")")
        return found

    def _function(self, storage: Storage, *, inline: bool = False) -> s.FunctionDecl:
        pos = self.pos()
        is_task = self.advance().text == "task"
        name = self.identifier("the function's name")
        self.expect("(")
        params: list[s.Parameter] = []
        while self.token.text != ")":
            params.append(self._parameter())
            if not self.accept(","):
                break
        self.expect(")")
        linkname = self._attributes().get("linkname")
        ret = self.type_expr(no_init=True)
        linkname = self._attributes().get("linkname", linkname)
        body = None if storage == "extern" and self.accept(";") else self.block()
        return s.FunctionDecl(name, tuple(params), ret, body, is_task, storage, inline, linkname, pos=pos)

    def _parameter(self) -> s.Parameter:
        pos = self.pos()
        is_comptime = self.accept("comptime")
        name = self.identifier("a parameter's name")
        self.expect(":", "':' and the parameter's type")
        return s.Parameter(name, self.type_expr(), is_comptime, pos=pos)

    # --- statements ---

    def block(self, label: str = "") -> s.Block:
        """``{ ... }`` with recovery inside."""
        self.blocks += 1
        try:
            return self._statements(label)
        finally:
            self.blocks -= 1

    def _statements(self, label: str) -> s.Block:
        if self.blocks > MAX_BLOCKS:
            raise RecursionError
        pos = self.pos()
        self.expect("{", "'{'")
        body: list[s.Stmt] = []
        while self.token.text != "}" or self.token.kind == "string":
            if self.token.kind == "end":
                raise self.unexpected("'}' to close the block", hint=f"the block opened at {pos}")
            start = self.at
            try:
                statement = self.statement()
                if statement is not None:
                    body.append(statement)
            except Unexpected as problem:
                self.report(problem)
                self._skip_statement(start)
        self.advance()
        return s.Block(tuple(body), label, pos=pos)

    def statement(self) -> s.Stmt | None:
        """One statement; None for a stray ``;``."""
        pos, token = self.pos(), self.token
        if self.accept(";"):
            return None
        if token.kind == "name" and self.peek(1).text == ":" and self.peek(2).text in ("{", "while", "for"):
            self.advance()
            self.advance()
            return self._labelled(token.text)
        if token.text == "comptime" and token.kind == "keyword":
            return self._comptime_statement(pos)
        if token.kind == "op" and token.text == "{":
            return self.block()
        if token.kind == "keyword":
            match token.text:
                case "const" | "var":
                    return self._variable("")
                case "if":
                    return self._if()
                case "while" | "for":
                    return self._loop("")
                case "switch":
                    return self._switch_statement()
        inner = self.simple_statement()
        self.end_statement("the statement")
        return inner

    def simple_statement(self) -> s.Stmt:
        """A statement without its ``;``: return, break, continue, assignment or expression."""
        pos, token = self.pos(), self.token
        if token.kind == "keyword":
            match token.text:
                case "return":
                    self.advance()
                    value = None if self.token.text in (";", "else", "}", ",") else self.expression()
                    return s.ReturnStmt(value, pos=pos)
                case "break":
                    self.advance()
                    label = self.identifier("a label") if self.accept(":") else ""
                    value = None if self.token.text in (";", "else", "}", ",") else self.expression()
                    return s.BreakStmt(label, value, pos=pos)
                case "continue":
                    self.advance()
                    return s.ContinueStmt(self.identifier("a label") if self.accept(":") else "", pos=pos)
        target = self.expression()
        if self.token.kind == "op" and self.token.text in _ASSIGN:
            op = self.advance().text
            return s.Assignment(target, op, self.expression(), pos=pos)
        return s.ExpressionStmt(target, pos=pos)

    def _labelled(self, label: str) -> s.Stmt:
        return self.block(label) if self.token.text == "{" else self._loop(label)

    def _comptime_statement(self, pos: s.Position) -> s.Stmt:
        following = self.peek(1).text
        if following == "{":
            self.advance()
            return s.ComptimeBlock(self.block(), pos=pos)
        if following in ("const", "var"):
            self.advance()
            return self._variable("", is_comptime=True)
        if following in ("while", "for"):
            self.advance()
            return self._loop("", is_comptime=True)
        inner = self.simple_statement()
        self.end_statement("the statement")
        return inner

    def _if(self) -> s.IfStmt:
        pos = self.pos()
        self.advance()
        cond = self._condition("if")
        then, ended = self._branch()
        other = None
        if self.token.text == "else" and self.token.kind == "keyword":
            self.advance()
            other, ended = self._branch()
        if not ended:
            self.end_statement("the statement")
        return s.IfStmt(cond, then, other, pos=pos)

    def _condition(self, word: str) -> s.Expr:
        self.expect("(", f"'(' after {word}", hint="conditions stand in parentheses")
        cond = self.expression()
        self.expect(")")
        return cond

    def _branch(self) -> tuple[s.Stmt, bool]:
        """A branch of an if, and whether it needs no ``;`` after it."""
        token = self.token
        if token.text == "{" and token.kind == "op":
            return self.block(), True
        if token.kind == "keyword" and token.text in ("if", "while", "for", "switch"):
            found = self.statement()
            assert found is not None
            return found, True
        inner = self.simple_statement()
        # The semicolon may close the branch before an `else`.
        if self.token.text == ";" and self.peek(1).text == "else":
            self.advance()
        return inner, False

    def _loop(self, label: str, *, is_comptime: bool = False) -> s.Stmt:
        pos = self.pos()
        if self.advance().text == "while":
            cond, step = self._condition("while"), None
            if self.accept(":"):
                self.expect("(")
                step = self.simple_statement()
                self.expect(")")
            return s.WhileStmt(cond, step, self._loop_body(), label, is_comptime, pos=pos)
        self.expect("(")
        iterable = self.expression()
        self.expect(")")
        self.expect("|", "'|' and the loop variable")
        item = self.identifier("the loop variable")
        index = self.identifier("the index variable") if self.accept(",") else None
        self.expect("|")
        return s.ForStmt(iterable, item, index, self._loop_body(), label, is_comptime, pos=pos)

    def _loop_body(self) -> s.Stmt:
        body, ended = self._branch()
        if not ended:
            self.end_statement("the loop's body")
        return body

    def _switch_statement(self) -> s.SwitchStmt:
        pos = self.pos()
        self.advance()
        value = self._condition("switch")
        self.expect("{")
        arms: list[s.SwitchArm] = []
        while self.token.text != "}":
            arms.append(self._switch_arm())
            if not self.accept(","):
                break
        self.expect("}", "',' and another arm, or '}'")
        return s.SwitchStmt(value, tuple(arms), pos=pos)

    def _switch_arm(self) -> s.SwitchArm:
        pos = self.pos()
        items = self.switch_items()
        token = self.token
        if token.text == "{" and token.kind == "op":
            return s.SwitchArm(items, self.block(), pos=pos)
        if token.kind == "keyword" and token.text in ("if", "while", "for", "switch"):
            found = self.statement()
            assert found is not None
            return s.SwitchArm(items, found, pos=pos)
        return s.SwitchArm(items, self.simple_statement(), pos=pos)

    # --- recovery ---

    def _skip_statement(self, start: int) -> None:
        """To the end of the broken statement: past its ``;``, or before the ``}`` of its block."""
        self.at = max(self.at, start)
        depth = 0
        while self.token.kind != "end":
            text = self.token.text if self.token.kind in ("op", "keyword") else ""
            if depth == 0 and (text == "}" or (text == ";" and self.at > start)):
                if text == ";":
                    self.advance()
                return
            if depth == 0 and self.at > start and text in ("const", "var", "return", "while", "for", "switch"):
                return
            depth += text in ("{", "(", "[", ".{")
            depth -= depth > 0 and text in ("}", ")", "]")
            if text == "}" and depth == 0:
                self.advance()
                self.accept(";")
                return
            self.advance()

    def _skip_declaration(self, start: int) -> None:
        """To the next thing that starts a declaration at the left margin."""
        self.at = max(self.at, start + 1)
        while self.token.kind != "end":
            if self.token.kind == "keyword" and self.token.text in _TOP_LEVEL and self.pos().column == 1:
                return
            self.advance()
