"""Carrying out rewrites: edits of source spans, and the imports they make needless or needed."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable

from emberharmony.lint.findings import Edit, Finding
from emberharmony.lint.scopes import OPS, Imported
from emberharmony.lint.source import Module

__all__ = ["apply_edits", "plan"]

_NEW_IMPORT = "from emberharmony import ops"

ImportStatement = ast.Import | ast.ImportFrom


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made; of two that overlap, the second is dropped.

    Insertions at one place appear in the order given.

    Example:
        >>> apply_edits("a+b", [Edit(0, 0, "f("), Edit(1, 2, ", "), Edit(3, 3, ")")])
        'f(a, b)'
    """
    parts: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < done:
            continue
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])


def plan(module: Module, findings: Iterable[Finding], drop_imports: bool = True) -> list[Edit]:
    """All edits for the fixable findings of a module, with the imports they entail.

    Args:
        module: The module as it is.
        findings: Findings of this module with edits.
        drop_imports: Whether numpy imports left without a use are removed.

    Returns:
        Edits that do not overlap.
    """
    edits = [edit for finding in findings for edit in finding.edits]
    if not edits:
        return []
    removable = _unused_after(module, edits) if drop_imports else {}
    needs_import = not any(
        imported.dotted == OPS and not imported.typing_only for imported in module.scopes.module.imports.values()
    )
    replaced: ImportStatement | None = None
    if needs_import:
        replaced = next((s for s in removable if s in module.tree.body), None)
        if replaced is None:
            edits.append(_insert_import(module))
    for statement, aliases in removable.items():
        edits.extend(_drop(module, statement, aliases, replace=statement is replaced))
    return edits


def _unused_after(module: Module, edits: list[Edit]) -> dict[ImportStatement, list[ast.alias]]:
    """Import statements, each with its numpy names that no code uses once the edits are made."""
    spans = {(edit.start, edit.end) for edit in edits}
    used: set[Imported] = set()
    for node in module.nodes:
        if isinstance(node, ast.Name) and (imported := module.scopes.imported(node)) is not None:
            outer = node
            while isinstance(parent := module.parents.get(outer), ast.Attribute):
                outer = parent
            if (module.start(outer), module.end(outer)) not in spans:
                used.add(imported)
    dropped: dict[ImportStatement, list[ast.alias]] = defaultdict(list)
    for scope in module.scopes.scopes:
        for imported in scope.imports.values():
            is_numpy = imported.dotted.partition(".")[0] == "numpy" and not imported.typing_only
            mentioned = imported.name in scope.assigned or _in_strings(module, imported.name)
            touched = imported not in used and _was_edited(module, imported, spans)
            if is_numpy and touched and not mentioned:
                dropped[imported.statement].append(imported.alias)
    return {s: aliases for s, aliases in dropped.items() if _is_editable(module, s)}


def _was_edited(module: Module, imported: Imported, spans: set[tuple[int, int]]) -> bool:
    """Whether an edit took away a use; an import nobody used before is not ours to remove."""
    return any(
        (module.start(node), module.end(node)) in spans and module.scopes.imported(_root(node)) is imported
        for node, _ in module.references
    )


def _root(node: ast.expr) -> ast.Name:
    while isinstance(node, ast.Attribute):
        node = node.value
    assert isinstance(node, ast.Name)
    return node


def _in_strings(module: Module, name: str) -> bool:
    """Whether a doctest, a quoted annotation or `__all__` may still need the name."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and word.search(node.value)
        for node in module.nodes
    )


def _is_editable(module: Module, statement: ImportStatement) -> bool:
    """Whether the statement has its lines to itself and hides no comment."""
    before, after = _around(module, statement)
    return not before.strip() and not after.strip() and "#" not in module.segment(statement)


def _around(module: Module, statement: ImportStatement) -> tuple[str, str]:
    """What stands before and after a statement on its lines."""
    assert statement.end_lineno is not None
    first, last = module.lines[statement.lineno - 1], module.lines[statement.end_lineno - 1]
    end = module.column(statement.end_lineno, statement.end_col_offset or 0)
    return first[: module.column(statement.lineno, statement.col_offset)], last[end:]


def _drop(module: Module, statement: ImportStatement, aliases: list[ast.alias], *, replace: bool) -> list[Edit]:
    """Remove names from an import statement, and the statement when none is left."""
    start, end = module.start(statement), module.end(statement)
    kept = [alias for alias in statement.names if alias not in aliases]
    newline = _newline(module)
    if kept:
        extra = newline + _NEW_IMPORT if replace else ""
        return [Edit(start, end, _spell(statement, kept) + extra)]
    if replace:
        return [Edit(start, end, _NEW_IMPORT)]
    if _is_only_statement(module, statement):
        return [Edit(start, end, "pass")]
    before, after = _around(module, statement)
    return [Edit(start - len(before), end + len(after), "")]


def _spell(statement: ImportStatement, aliases: list[ast.alias]) -> str:
    names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in aliases)
    if isinstance(statement, ast.Import):
        return f"import {names}"
    return f"from {statement.module} import {names}"


def _is_only_statement(module: Module, statement: ast.stmt) -> bool:
    parent = module.parents[statement]
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    return any(block == [statement] for block in blocks if isinstance(block, list))


def _newline(module: Module) -> str:
    first = module.lines[0] if module.lines else "\n"
    return "\r\n" if first.endswith("\r\n") else "\n"


def _insert_import(module: Module) -> Edit:
    """The ops import, below the docstring and the imports the module begins with."""
    newline = _newline(module)
    after: ast.stmt | None = None
    for index, statement in enumerate(module.tree.body):
        is_docstring = index == 0 and ast.get_docstring(module.tree, clean=False) is not None
        if not is_docstring and not isinstance(statement, ast.Import | ast.ImportFrom):
            break
        after = statement
    if after is None:
        at = module.line_start(_first_line(module.tree.body[0]))
        return Edit(at, at, _NEW_IMPORT + newline)
    end_line = after.end_lineno or after.lineno
    at = module.line_start(end_line) + len(module.lines[end_line - 1].rstrip("\r\n"))
    return Edit(at, at, newline + _NEW_IMPORT)


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
