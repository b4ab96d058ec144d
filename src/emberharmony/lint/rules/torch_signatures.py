"""EH501, EH505: what signatures of PyTorch code should say."""

import ast
from collections.abc import Iterator

from emberharmony.lint.kinds import Kind, annotation_kind
from emberharmony.lint.registry import TORCH_STYLE, Found, found, rule
from emberharmony.lint.source import Module
from emberharmony.lint.torch_code import is_test, parameters

__all__ = ["hidden_tuple", "missing_hint"]

_TUPLES = frozenset(["Tuple", "tuple"])


@rule("EH501", "missing-type-hint", ruleset=TORCH_STYLE)
def missing_hint(module: Module) -> Iterator[Found]:
    """A parameter or the result of a function has no type hint; tests are exempt."""
    for node in module.functions():
        if is_test(node):
            continue
        bare = [argument.arg for argument in parameters(node) if argument.annotation is None]
        if bare:
            yield found(node, f"{node.name}() has no type hint for {', '.join(bare)}")
        if node.returns is None:
            yield found(node, f"{node.name}() has no type hint for its result")


@rule("EH505", "hidden-tuple", ruleset=TORCH_STYLE)
def hidden_tuple(module: Module) -> Iterator[Found]:
    """Tensors travel in a bare tuple; a NamedTuple or named arguments say which is which."""
    for node in module.functions():
        for argument in parameters(node):
            if _is_tensor_tuple(argument.annotation):
                assert argument.annotation is not None
                yield found(
                    argument.annotation,
                    f"{argument.arg} is a bare tuple of tensors; use a NamedTuple",
                )
        vararg = node.args.vararg
        if vararg is not None and annotation_kind(vararg.annotation) is Kind.TENSOR:
            yield found(node, f"*{vararg.arg} hides tensors in a tuple; name the arguments")
        if _is_tensor_tuple(node.returns):
            assert node.returns is not None
            yield found(node.returns, "returns a bare tuple of tensors; use a NamedTuple")


def _is_tensor_tuple(annotation: ast.expr | None) -> bool:
    if not isinstance(annotation, ast.Subscript):
        return False
    head = annotation.value
    name = head.attr if isinstance(head, ast.Attribute) else getattr(head, "id", None)
    inner = annotation.slice
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    return name in _TUPLES and any(annotation_kind(part) is Kind.TENSOR for part in parts)
