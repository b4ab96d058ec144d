"""EH502, EH503: tensors are made with a stated dtype on a stated device."""

import ast
from collections.abc import Iterator

from emberharmony.lint.names import names
from emberharmony.lint.registry import TORCH_STYLE, Found, found, rule
from emberharmony.lint.source import Module

__all__ = ["missing_device", "missing_dtype"]

# `*_like` and as_tensor take both from their input; randint and randperm are integers by nature.
_CREATORS = names("arange empty eye full linspace logspace ones rand randn tensor zeros")
_WITH_INTEGERS = _CREATORS | {"randint", "randperm"}


def _lacking(module: Module, names: frozenset[str], keyword: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of the named torch functions that do not pass `keyword`."""
    for call in module.calls():
        dotted = module.dotted(call.func) or ""
        top, _, name = dotted.partition(".")
        given = {item.arg for item in call.keywords}
        # A ** argument may hold it: the benefit of the doubt.
        if top == "torch" and name in names and not given & {keyword, None}:
            yield dotted, call


@rule("EH502", "missing-dtype", ruleset=TORCH_STYLE)
def missing_dtype(module: Module) -> Iterator[Found]:
    """A tensor is created without `dtype=`; creation from another tensor infers it."""
    for dotted, call in _lacking(module, _CREATORS, "dtype"):
        yield found(call, f"{dotted}() without dtype=; state the dtype")


@rule("EH503", "missing-device", ruleset=TORCH_STYLE)
def missing_device(module: Module) -> Iterator[Found]:
    """A tensor is created without `device=`."""
    for dotted, call in _lacking(module, _WITH_INTEGERS, "device"):
        yield found(call, f"{dotted}() without device=; pass the device on")
