"""Where builtins register themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from wsesim.csl.sema.evaluate import Evaluator
    from wsesim.csl.sema.values import Operand
    from wsesim.csl.syntax import nodes as s

__all__ = ["BUILTINS", "BuiltinRule", "builtin"]


@dataclass(frozen=True)
class BuiltinRule:
    """How many arguments a builtin takes, and what evaluates it."""

    low: int
    high: int
    handler: Callable[[Evaluator, s.BuiltinCall], Operand]


BUILTINS: dict[str, BuiltinRule] = {}


def builtin(name: str, low: int, high: int | None = None) -> Callable[[Callable[..., Operand]], Callable[..., Operand]]:
    """Registers the rule of ``@name`` with ``low`` to ``high`` arguments."""

    def register(handler: Callable[..., Operand]) -> Callable[..., Operand]:
        BUILTINS[name] = BuiltinRule(low, low if high is None else high, handler)
        return handler

    return register
