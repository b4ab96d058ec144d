"""EH4xx: code that knows which array library is underneath."""

import ast
from collections.abc import Iterator

from emberharmony.lint.imports import imported_modules
from emberharmony.lint.registry import Found, found, rule
from emberharmony.lint.source import Module

__all__ = ["backend_branch", "backend_import", "backend_type_test", "backend_usage"]

_LIBRARIES = frozenset(["cupy", "jax", "mlx", "tensorflow", "torch"])
_ARRAY_LIBRARIES = _LIBRARIES | {"numpy"}
_NAMES = frozenset(["mlx", "numpy", "torch"])
_FOREIGN_ATTRIBUTES = frozenset(["__array__", "numpy"])


def _top(dotted: str | None) -> str:
    return (dotted or "").partition(".")[0]


@rule("EH401", "backend-import")
def backend_import(module: Module) -> Iterator[Found]:
    """One backend's library is imported directly."""
    for node, names in imported_modules(module):
        for name in sorted({_top(n) for n in names} & _LIBRARIES):
            yield found(node, f"imports {name}; use `from emberharmony import ops`")


@rule("EH402", "backend-usage", yields_to=["EH202", "EH403"])
def backend_usage(module: Module) -> Iterator[Found]:
    """A function or type of one backend is used directly."""
    for node, dotted in module.references:
        if _top(dotted) in _LIBRARIES:
            yield found(node, f"uses {dotted}; use a function of emberharmony.ops")


@rule("EH403", "backend-type-test")
def backend_type_test(module: Module) -> Iterator[Found]:
    """A branch on the array type: `isinstance(x, np.ndarray)`, `hasattr(x, "numpy")`."""
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, types]):
                yield from _named_types(module, types)
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
                if name in _FOREIGN_ATTRIBUTES:
                    yield found(node, f"tests for .{name}; use ops.convert_to_tensor")
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[types]):
                yield from _named_types(module, types)
            case _:
                pass


def _named_types(module: Module, types: ast.expr) -> Iterator[Found]:
    pending = [types]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Tuple):
            pending.extend(reversed(node.elts))
        elif isinstance(node, ast.BinOp):
            pending.extend([node.right, node.left])
        elif _top(dotted := module.dotted(node)) in _ARRAY_LIBRARIES:
            yield found(node, f"tests for {dotted}; use ops.convert_to_tensor")


@rule("EH404", "backend-branch")
def backend_branch(module: Module) -> Iterator[Found]:
    """A branch on the backend's name: `get_backend() == "torch"`."""
    for node in module.nodes:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            if any(map(_asks_backend, operands)) and any(map(_is_backend_name, operands)):
                yield found(node, "branches on the backend; ops does the same on all of them")
        elif isinstance(node, ast.Match) and _asks_backend(node.subject):
            yield found(node.subject, "branches on the backend; ops does the same on all of them")


def _asks_backend(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name == "get_backend"


def _is_backend_name(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return any(isinstance(part, ast.Constant) and part.value in _NAMES for part in parts)
