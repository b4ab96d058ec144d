"""Questions about PyTorch code that several rules ask."""

import ast
from collections.abc import Iterator

from emberharmony.lint.source import Module

__all__ = ["FunctionNode", "is_test", "method_calls", "parameters", "words"]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def is_test(node: FunctionNode) -> bool:
    """Whether a function is a test by its name; fixtures fill its parameters.

    Example:
        >>> is_test(ast.parse("def test_a(): pass").body[0])
        True
    """
    return node.name.startswith("test_") or node.name == "test"


def parameters(node: FunctionNode) -> list[ast.arg]:
    """The parameters of a function, without `self` and `cls`.

    Example:
        >>> [p.arg for p in parameters(ast.parse("def f(self, a, *, b): pass").body[0])]
        ['a', 'b']
    """
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    variadic = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*positional, *arguments.kwonlyargs, *variadic]


def words(name: str) -> frozenset[str]:
    """The words of a snake_case name.

    Example:
        >>> sorted(words("_mean_loss"))
        ['loss', 'mean']
    """
    return frozenset(name.lower().split("_")) - {""}


def method_calls(module: Module, node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Method calls inside `node`, each with the method's name; library functions left out."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(func=ast.Attribute(attr=name) as func) if module.dotted(func) is None:
                yield name, inner
            case _:
                pass
