"""Syntax tree back to text; parsing that text gives an equal tree.

Parentheses are written only where the tree needs them, blocks are indented by two spaces, and long calls and structs
are broken one item per line.
"""

from __future__ import annotations

from typing import assert_never

from wsesim.csl.syntax import nodes as s
from wsesim.csl.syntax.expressions import PRECEDENCE

__all__ = ["print_expr", "print_file", "print_stmt"]

_WIDTH = 100
_UNARY, _POSTFIX = 8, 9


def print_file(file: s.File) -> str:
    """Text of a whole file.

    >>> from wsesim.csl.syntax.parser import parse_text
    >>> print(print_file(parse_text("param n:u16=4;task t()void{x[(1+n)*2]=n;}")), end="")
    param n: u16 = 4;
    <BLANKLINE>
    task t() void {
      x[(1 + n) * 2] = n;
    }
    """
    parts: list[str] = []
    explained = False  # a comment stays with what it explains
    for decl, text in [(decl, _decl(decl)) for decl in file.decls]:
        is_comment = isinstance(decl, s.Comment)
        if parts and not explained and ("\n" in text or is_comment):
            parts.append("")
        parts.append(text)
        explained = is_comment
    return "\n".join(parts) + "\n" if parts else ""


def print_stmt(stmt: s.Stmt, indent: int = 0) -> str:
    """Text of a statement, its lines indented by ``indent`` spaces."""
    return _indent(_stmt(stmt), " " * indent)


def print_expr(expr: s.Expr) -> str:
    """Text of an expression."""
    return _expr(expr, 0)


def _indent(text: str, pad: str = "  ") -> str:
    return "\n".join(pad + line if line else line for line in text.split("\n"))


# --- declarations and statements -------------------------------------------------------------------------------------


def _decl(decl: s.Decl) -> str:
    match decl:
        case s.ParamDecl(name, kind, default):
            typed = f": {_expr(kind, _UNARY)}" if kind is not None else ""
            return f"param {name}{typed}{f' = {_expr(default, 0)}' if default is not None else ''};"
        case s.LayoutBlock(body):
            return f"layout {_block(body)}"
        case s.FunctionDecl():
            return _function(decl)
        case s.VarDecl() | s.ComptimeBlock() | s.Comment():
            return _stmt(decl)
        case _:
            assert_never(decl)


def _function(decl: s.FunctionDecl) -> str:
    params = ", ".join(f"{'comptime ' if p.is_comptime else ''}{p.name}: {_expr(p.type, _UNARY)}" for p in decl.params)
    words = [decl.storage] if decl.storage else []
    words += ["inline"] if decl.is_inline else []
    words.append("task" if decl.is_task else "fn")
    link = f"linkname({_expr(decl.linkname, 0)}) " if decl.linkname is not None else ""
    head = f"{' '.join(words)} {decl.name}({params}) {link}{_expr(decl.ret, _UNARY)}"
    return f"{head};" if decl.body is None else f"{head} {_block(decl.body)}"


def _variable(decl: s.VarDecl) -> str:
    text = f"{decl.storage} " if decl.storage else ""
    text += "comptime " if decl.is_comptime else ""
    text += f"{'const' if decl.const else 'var'} {decl.name}"
    if decl.type is not None:
        text += f": {_expr(decl.type, _UNARY)}"
    if decl.align is not None:
        text += f" align({_expr(decl.align, 0)})"
    if decl.section is not None:
        text += f" linksection({_expr(decl.section, 0)})"
    if decl.linkname is not None:
        text += f" linkname({_expr(decl.linkname, 0)})"
    if decl.init is not None:
        text += f" = {_expr(decl.init, 0)}"
    return f"{text};"


def _block(block: s.Block) -> str:
    label = f"{block.label}: " if block.label else ""
    if not block.body:
        return f"{label}{{}}"
    return f"{label}{{\n{_indent(chr(10).join(_stmt(x) for x in block.body))}\n}}"


def _stmt(stmt: s.Stmt) -> str:
    match stmt:
        case s.Block():
            return _block(stmt)
        case s.VarDecl():
            return _variable(stmt)
        case s.IfStmt(cond, then, other):
            return _if(cond, then, other)
        case s.WhileStmt():
            step = f" : ({_simple(stmt.step)})" if stmt.step is not None else ""
            return f"{_loop_head(stmt)}while ({_expr(stmt.cond, 0)}){step} {_stmt(stmt.body)}"
        case s.ForStmt():
            names = stmt.item if stmt.index is None else f"{stmt.item}, {stmt.index}"
            return f"{_loop_head(stmt)}for ({_expr(stmt.iterable, 0)}) |{names}| {_stmt(stmt.body)}"
        case s.SwitchStmt(value, arms):
            return _switch(value, arms)
        case s.ComptimeBlock(body):
            return f"comptime {_block(body)}"
        case s.Comment(text):
            return "\n".join(f"// {line}".rstrip() for line in text.split("\n"))
        case s.ExpressionStmt() | s.Assignment() | s.ReturnStmt() | s.BreakStmt() | s.ContinueStmt():
            return f"{_simple(stmt)};"
        case _:
            assert_never(stmt)


def _loop_head(stmt: s.WhileStmt | s.ForStmt) -> str:
    return (f"{stmt.label}: " if stmt.label else "") + ("comptime " if stmt.is_comptime else "")


def _simple(stmt: s.Stmt) -> str:
    match stmt:
        case s.ExpressionStmt(expr):
            return _expr(expr, 0)
        case s.Assignment(target, op, value):
            return f"{_expr(target, 0)} {op} {_expr(value, 0)}"
        case s.ReturnStmt(value):
            return "return" if value is None else f"return {_expr(value, 0)}"
        case s.BreakStmt(label, value):
            text = f"break :{label}" if label else "break"
            return text if value is None else f"{text} {_expr(value, 0)}"
        case s.ContinueStmt(label):
            return f"continue :{label}" if label else "continue"
        case _:
            raise TypeError(f"{type(stmt).__name__} cannot stand where a simple statement is expected")


def _if(cond: s.Expr, then: s.Stmt, other: s.Stmt | None) -> str:
    head = f"if ({_expr(cond, 0)}) "
    if other is None:
        return head + _stmt(then)
    text = _stmt(then)
    simple = not isinstance(then, s.Block | s.IfStmt | s.WhileStmt | s.ForStmt | s.SwitchStmt)
    if simple:
        text = text[:-1]  # `if (a) b() else c();`: the semicolon comes at the end
    return f"{head}{text} else {_stmt(other)}"


def _switch(value: s.Expr, arms: tuple[s.SwitchArm, ...]) -> str:
    lines = []
    for arm in arms:
        if isinstance(arm.body, s.Block | s.IfStmt | s.WhileStmt | s.ForStmt | s.SwitchStmt):
            body = _stmt(arm.body)
        elif isinstance(arm.body, s.ExpressionStmt | s.Assignment | s.ReturnStmt | s.BreakStmt | s.ContinueStmt):
            body = _simple(arm.body)
        elif isinstance(arm.body, s.VarDecl | s.ComptimeBlock | s.Comment):
            raise TypeError(f"a switch arm cannot be a {type(arm.body).__name__}")
        else:
            body = _expr(arm.body, 0)
        lines.append(f"{_switch_items(arm)} => {body},")
    return f"switch ({_expr(value, 0)}) {{\n{_indent(chr(10).join(lines))}\n}}"


def _switch_items(arm: s.SwitchArm) -> str:
    if not arm.items:
        return "else"
    parts = (f"{_expr(i[0], 0)}...{_expr(i[1], 0)}" if isinstance(i, tuple) else _expr(i, 0) for i in arm.items)
    return ", ".join(parts)


# --- expressions -----------------------------------------------------------------------------------------------------


def _expr(expr: s.Expr, level: int) -> str:
    """Text of ``expr`` where operators below ``level`` need parentheses."""
    match expr:
        case s.Name(id=text) | s.IntLiteral(text) | s.FloatLiteral(text) | s.StringLiteral(text) | s.CharLiteral(text):
            return text
        case s.BoolLiteral(value):
            return "true" if value else "false"
        case s.Binary(op, left, right):
            here = PRECEDENCE[op]
            # Comparisons do not chain, so both sides of one need parentheses when they are comparisons.
            text = f"{_expr(left, here + (here == 3))} {op} {_expr(right, here + 1)}"
            return f"({text})" if level > here else text
        case s.Unary(op, operand):
            return _wrap(f"{op}{_expr(operand, _UNARY)}", level > _UNARY)
        case s.ComptimeExpr(operand):
            return _wrap(f"comptime {_expr(operand, _UNARY)}", level > _UNARY)
        case s.IfExpr(cond, then, other):
            text = f"if ({_expr(cond, 0)}) {_expr(then, 1)}"
            text += f" else {_expr(other, 0)}" if other is not None else ""
            return _wrap(text, level > 0)
        case s.SwitchExpr(value, arms):
            return _wrap(_switch(value, arms), level > 0)
        case s.BlockExpr(body):
            return _wrap(_block(body), level > 0)
        case s.TensorAccess(variables, lengths, target):
            sizes = ", ".join(_expr(n, 0) for n in lengths)
            return _wrap(f"|{', '.join(variables)}|{{{sizes}}} -> {_expr(target, _UNARY)}", level > _UNARY)
        case s.AnonStruct(fields):
            return _fields(".{", fields)
        case s.InitList(kind, fields):
            return _fields(f"{_init_type(kind)} {{", fields)
        case _:
            return _postfix_or_type(expr, level)


def _wrap(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _init_type(kind: s.Expr) -> str:
    # Only these may stand before a `{`; others would be read differently.
    plain = isinstance(kind, s.Name | s.Call | s.Field | s.BuiltinCall | s.StructTypeExpr | s.ArrayTypeExpr)
    return _wrap(_expr(kind, _POSTFIX if not isinstance(kind, s.ArrayTypeExpr) else 0), not plain)


def _postfix_or_type(
    expr: s.Call
    | s.BuiltinCall
    | s.Field
    | s.Deref
    | s.Index
    | s.ArrayTypeExpr
    | s.PtrTypeExpr
    | s.FnTypeExpr
    | s.StructTypeExpr
    | s.EnumTypeExpr,
    level: int,
) -> str:
    match expr:
        case s.Call(function, args):
            return _call(_expr(function, _POSTFIX), args)
        case s.BuiltinCall(name, args):
            return _call(f"@{name}", args)
        case s.Field(base, name):
            return f"{_expr(base, _POSTFIX)}.{name}"
        case s.Deref(base):
            return f"{_expr(base, _POSTFIX)}.*"
        case s.Index(base, indices):
            return f"{_expr(base, _POSTFIX)}[{', '.join(_expr(i, 0) for i in indices)}]"
        case s.ArrayTypeExpr(dims, elem):
            return _wrap(f"[{', '.join(_expr(d, 0) for d in dims)}]{_expr(elem, _UNARY)}", level > _UNARY)
        case s.PtrTypeExpr(elem, const, many):
            head = f"{'[*]' if many else '*'}{'const ' if const else ''}"
            return _wrap(f"{head}{_expr(elem, _UNARY)}", level > _UNARY)
        case s.FnTypeExpr(params, ret, is_task):
            head = f"{'task' if is_task else 'fn'}({', '.join(_expr(p, 0) for p in params)})"
            return _wrap(f"{head} {_expr(ret, _UNARY)}", level > _UNARY)
        case s.StructTypeExpr(fields, layout, is_union):
            head = f"{layout} " if layout != "auto" else ""
            inner = ", ".join(f"{n}: {_expr(t, _UNARY)}" for n, t in fields)
            return f"{head}{'union' if is_union else 'struct'} {{ {inner} }}"
        case s.EnumTypeExpr(base, members):
            inner = ", ".join(n if v is None else f"{n} = {_expr(v, 0)}" for n, v in members)
            return f"enum{'' if base is None else f'({_expr(base, 0)})'} {{ {inner} }}"
        case _:
            assert_never(expr)


def _call(head: str, args: tuple[s.Expr, ...]) -> str:
    parts = [_expr(a, 0) for a in args]
    line = f"{head}({', '.join(parts)})"
    if len(line) <= _WIDTH or not parts or ("\n" in line and len(line.split("\n", 1)[0]) <= _WIDTH):
        return line
    return f"{head}(\n{_indent((',' + chr(10)).join(parts))}\n)"


def _fields(head: str, fields: tuple[s.FieldInit, ...]) -> str:
    parts = [_expr(f.value, 0) if f.name is None else f".{f.name} = {_expr(f.value, 0)}" for f in fields]
    if not parts:
        return f"{head}}}"
    line = f"{head} {', '.join(parts)} }}"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    return f"{head}\n{_indent((',' + chr(10)).join(parts))}\n}}"
