"""Modules a file imports while it runs, however the import is spelled."""

import ast
from collections.abc import Iterator

from emberharmony.lint.source import Module

__all__ = ["imported_modules"]

_IMPORTERS = frozenset(["importlib.import_module", "builtins.__import__"])


def imported_modules(module: Module) -> Iterator[tuple[ast.expr | ast.stmt, list[str]]]:
    r"""Import statements and calls, each with the modules it loads; typing-only ones left out.

    Example:
        >>> source = "import numpy.linalg, os\n__import__('torch')"
        >>> [names for _, names in imported_modules(Module("a.py", source))]
        [['numpy.linalg', 'os'], ['torch']]
    """
    typing_only = _typing_only(module)
    for node in module.nodes:
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield node, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # `from mlx import core` loads mlx.core: the names may be modules themselves.
            yield node, [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and _is_importer(module, node.func):
            yield from _called(node)


def _typing_only(module: Module) -> set[ast.AST]:
    return {
        imported.statement
        for scope in module.scopes.scopes
        for imported in scope.imports.values()
        if imported.typing_only
    }


def _is_importer(module: Module, func: ast.expr) -> bool:
    if isinstance(func, ast.Name) and func.id == "__import__":
        return True
    return module.dotted(func) in _IMPORTERS


def _called(node: ast.Call) -> Iterator[tuple[ast.expr, list[str]]]:
    match node.args:
        case [ast.Constant(value=str(name)), *_]:
            yield node, [name]
        case _:
            return
