"""EH3xx: Python operators where a house style asks for ops functions.

Operators and ops functions mean the same and are equally lazy, so this is a matter of style:
a note by default, an error when asked for.
"""

import ast
from collections.abc import Iterator

from emberharmony.lint.findings import Edit, Severity
from emberharmony.lint.kinds import Kind
from emberharmony.lint.registry import Found, rule
from emberharmony.lint.scopes import OPS
from emberharmony.lint.source import Module

__all__ = ["OPERATORS", "python_operator"]

OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "add"),
    ast.Sub: ("-", "subtract"),
    ast.Mult: ("*", "multiply"),
    ast.Div: ("/", "divide"),
    ast.FloorDiv: ("//", "floor_divide"),
    ast.Mod: ("%", "mod"),
    ast.Pow: ("**", "power"),
    ast.MatMult: ("@", "matmul"),
}


@rule("EH301", "python-operator", groups=["operators"], severity=Severity.NOTE)
def python_operator(module: Module) -> Iterator[Found]:
    """A Python arithmetic operator on what is, or may be, a tensor."""
    for node in module.nodes:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            kinds = (module.kind(node.left), module.kind(node.right))
            if _may_be_tensor(kinds):
                edits = _edits(module, node) if _is_surely_tensor(module, node, kinds) else ()
                yield Found(node, _message(node.op, ""), edits)
        elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
            kinds = (_target_kind(module, node.target), module.kind(node.value))
            if _may_be_tensor(kinds):
                # Rebinding instead of updating is visible to other names: left to the author.
                yield Found(node, _message(node.op, "="))


def _message(op: ast.operator, suffix: str) -> str:
    symbol, name = OPERATORS[type(op)]
    return f"operator {symbol}{suffix}; the function form is ops.{name}"


def _target_kind(module: Module, target: ast.expr) -> Kind:
    return module.kind(target) if isinstance(target, ast.Name) else Kind.UNKNOWN


def _may_be_tensor(kinds: tuple[Kind, Kind]) -> bool:
    """Unknown with a number is mostly index arithmetic, so it takes two unknowns."""
    return any(kind.is_array for kind in kinds) or kinds == (Kind.UNKNOWN, Kind.UNKNOWN)


def _is_surely_tensor(module: Module, node: ast.BinOp, kinds: tuple[Kind, Kind]) -> bool:
    if any(kind.is_array for kind in kinds):
        return True
    parent = module.parents.get(node)
    if not isinstance(parent, ast.Call) or node not in parent.args[:2]:
        return False
    names = {f"{OPS}.{name}" for _, name in OPERATORS.values()}
    return module.dotted(parent.func) in names


def _edits(module: Module, node: ast.BinOp) -> tuple[Edit, ...]:
    """Wrap the operands in a call and put a comma in place of the operator."""
    library = module.ops_name
    start, end = module.start(node), module.end(node)
    left, right = (module.start(node.left), module.end(node.left)), module.start(node.right)
    gap = module.text[left[1] : right]
    symbol, name = OPERATORS[type(node.op)]
    # A comment or continuation between the operands is too delicate to edit by machine.
    if library is None or "#" in gap or "\\" in gap:
        return ()
    at = gap.find(symbol)
    before, after = gap[:at], gap[at + len(symbol) :]
    opening = Edit(start, start, f"{library}.{name}(")
    closing = Edit(end, end, ")")
    comma_start, comma_end = left[1] + len(before.rstrip()), right - len(after.lstrip())
    # Arguments of a call need no brackets of their own.
    if isinstance(node.left, ast.BinOp) and _is_bracketed(module.text[start : left[0]], before):
        opening, comma_start = Edit(start, left[0], opening.text), left[1]
    if isinstance(node.right, ast.BinOp):
        right_end = module.end(node.right)
        if _is_bracketed(after, module.text[right_end:end]):
            closing, comma_end = Edit(right_end, end, ")"), right
    return (opening, Edit(comma_start, comma_end, "," + _space(before, after)), closing)


def _space(before: str, after: str) -> str:
    """The white space after the comma: the line break, where there was one."""
    blanks = (before[len(before.rstrip()) :], after[: len(after) - len(after.lstrip())])
    return next((blank for blank in blanks if "\n" in blank or "\r" in blank), " ")


def _is_bracketed(before: str, after: str) -> bool:
    return before.strip() == "(" and after.strip() == ")"
