"""EH1xx: values that leave the tensor world as Python numbers."""

import ast
from collections.abc import Iterator

from emberharmony.lint.kinds import Kind
from emberharmony.lint.registry import Found, found, rule
from emberharmony.lint.source import Module

__all__ = ["scalar_cast", "scalar_extraction"]

_CASTS = frozenset(["float", "int", "complex"])


@rule("EH101", "scalar-cast", groups=["precision"])
def scalar_cast(module: Module) -> Iterator[Found]:
    """`float()` or `int()` of a tensor: loses precision and waits for the device."""
    for call in module.calls():
        match call:
            case ast.Call(func=ast.Name(id=name) as func, args=[value], keywords=[]) if name in _CASTS:
                is_builtin = module.scopes.find(name, module.scopes.scope(func)) is None
                if is_builtin and module.kind(value) is Kind.TENSOR:
                    yield found(call, f"{name}() of a tensor; keep it as a 0-d tensor, or ops.cast")
            case _:
                pass


@rule("EH102", "scalar-extraction", groups=["precision"])
def scalar_extraction(module: Module) -> Iterator[Found]:
    """`.item()` or `.tolist()` of a tensor: copies values out, one Python object each."""
    for call in module.calls():
        match call:
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[], keywords=[]):
                kind = module.kind(value) if method in ("item", "tolist") else Kind.OTHER
                if kind is Kind.TENSOR or (method == "item" and kind is Kind.UNKNOWN):
                    yield found(call, f".{method}() copies out of the tensor; stay with ops")
            case _:
                pass
