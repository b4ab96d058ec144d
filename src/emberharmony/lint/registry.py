"""Rules and where they come from: every module of `emberharmony.lint.rules`, by listing."""

import ast
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from emberharmony.lint.findings import Edit, Finding, Severity
from emberharmony.lint.source import Module

__all__ = ["PURITY", "TORCH_STYLE", "Found", "Rule", "all_rules", "found", "rule"]

PURITY = "purity"
TORCH_STYLE = "torch-style"


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule's check yields: a node, a sentence and perhaps a rewrite."""

    node: ast.expr | ast.stmt
    message: str
    edits: tuple[Edit, ...] = ()


Check = Callable[[Module], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One check with a stable code.

    Attributes:
        code: `EH` and three digits; never reused.
        name: Two or three words, joined by hyphens.
        check: Yields what it finds in a module.
        summary: The first line of the check's docstring.
        ruleset: `purity` (on by default) or `torch-style` (opt-in).
        groups: The `--<group>-only` switches that keep this rule.
        severity: What its findings weigh unless the rule was asked for by name.
        yields_to: Codes whose finding at the same place makes this rule's one redundant.

    Example:
        >>> [r.name for r in all_rules() if r.code == "EH001"]
        ['numpy-import']
    """

    code: str
    name: str
    check: Check
    summary: str
    ruleset: str = PURITY
    groups: frozenset[str] = frozenset()
    severity: Severity = Severity.ERROR
    yields_to: frozenset[str] = frozenset()

    def run(self, module: Module) -> Iterator[Finding]:
        """All findings of this rule in a module."""
        for item in self.check(module):
            yield _finding(self, module, item)

    def as_error(self) -> "Rule":
        """The same rule with findings that fail the run."""
        return replace(self, severity=Severity.ERROR)


def _finding(checked_by: Rule, module: Module, item: Found) -> Finding:
    node = item.node
    end_line = node.end_lineno or node.lineno
    end_column = node.end_col_offset or node.col_offset
    return Finding(
        path=module.path,
        code=checked_by.code,
        message=item.message,
        severity=checked_by.severity,
        line=node.lineno,
        column=module.column(node.lineno, node.col_offset) + 1,
        end_line=end_line,
        end_column=module.column(end_line, end_column) + 1,
        edits=item.edits,
    )


def rule(
    code: str,
    name: str,
    *,
    ruleset: str = PURITY,
    groups: Iterable[str] = (),
    severity: Severity = Severity.ERROR,
    yields_to: Iterable[str] = (),
) -> Callable[[Check], Rule]:
    """Turn a check function into a `Rule`; being in a listed module registers it.

    Example:
        >>> @rule("EH999", "example")
        ... def example(module):
        ...     '''Never finds anything.'''
        ...     return []
        >>> example.summary
        'Never finds anything.'
    """

    def wrap(check: Check) -> Rule:
        summary = (check.__doc__ or "").strip().partition("\n")[0]
        return Rule(code, name, check, summary, ruleset, frozenset(groups), severity, frozenset(yields_to))

    return wrap


def found(node: ast.expr | ast.stmt, message: str, *edits: Edit) -> Found:
    """Short form of `Found` for use in checks."""
    return Found(node, message, edits)


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule there is, by code.

    Example:
        >>> all_rules()[0].code
        'EH001'
    """
    package = importlib.import_module("emberharmony.lint.rules")
    rules: dict[str, Rule] = {}
    for entry in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        members = vars(importlib.import_module(entry.name)).values()
        for candidate in members:
            if not isinstance(candidate, Rule):
                continue
            if rules.setdefault(candidate.code, candidate) is not candidate:
                raise RuntimeError(f"two rules claim the code {candidate.code}")
    return tuple(rules[code] for code in sorted(rules))
