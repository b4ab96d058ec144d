"""Printing reports: text for people, JSON for machines."""

import difflib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator

from emberharmony.lint.engine import Report
from emberharmony.lint.findings import Finding
from emberharmony.lint.registry import all_rules

__all__ = ["diff_lines", "json_text", "rule_lines", "text_lines"]

JSON_VERSION = 1


def text_lines(report: Report, *, verbose: bool = False) -> Iterator[str]:
    """The report as lines of text: findings, problems, totals, a line per directory.

    Args:
        report: What was found.
        verbose: Also list notes, checked files and the source line of every finding.

    Example:
        >>> list(text_lines(Report(files=["a.py"])))
        ['1 file checked: 0 errors, 0 notes']
    """
    if verbose:
        yield from (f"checked {path}" for path in report.files)
    for finding in report.findings:
        if verbose or finding.severity.fails:
            yield from _finding_lines(finding, report, verbose=verbose)
    for problem in report.problems:
        yield str(problem)
    for path, count in report.fixed.items():
        yield f"{path}: {_count(count, 'finding')} fixed"
    yield from _summary(report, verbose=verbose)


def _finding_lines(finding: Finding, report: Report, *, verbose: bool) -> Iterator[str]:
    mark = " [*]" if finding.fixable and finding.severity.fails else ""
    kind = "" if finding.severity.fails else "note: "
    yield f"{finding.location}: {finding.code} {kind}{finding.message}{mark}"
    lines = report.sources.get(finding.path, "").splitlines() if verbose else []
    if finding.line <= len(lines):
        # Very long lines are generated ones; the location says enough there.
        yield f"    {lines[finding.line - 1].strip()[:160]}"


def _summary(report: Report, *, verbose: bool) -> Iterator[str]:
    errors = report.errors
    notes = len(report.findings) - len(errors)
    total = f"{_count(len(report.files), 'file')} checked: {_count(len(errors), 'error')}, "
    total += _count(notes, "note")
    if report.problems:
        total += f", {_count(len(report.problems), 'path')} not checked"
    fixable = sum(finding.fixable for finding in errors)
    if fixable:
        total += f", {fixable} fixable with --fix [*]"
    if notes and not verbose:
        total += " (-v lists the notes)"
    yield total
    if report.findings:
        codes = _codes(report.findings)
        yield "by rule: " + ", ".join(f"{code} {count}" for code, count in codes.items())
        yield "by directory:"
        for directory, count in _directories(report.findings).items():
            errors_here, notes_here = _count(count["error"], "error"), _count(count["note"], "note")
            yield f"  {directory}: {errors_here}, {notes_here}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _codes(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(sorted(Counter(finding.code for finding in findings).items()))


def _directories(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for finding in findings:
        directory = os.path.dirname(finding.path) or "."
        counts.setdefault(directory, {"error": 0, "note": 0})[finding.severity.value] += 1
    return dict(sorted(counts.items()))


def json_text(report: Report) -> str:
    """The report as a JSON document.

    Example:
        >>> json.loads(json_text(Report(files=["a.py"])))["exit_status"]
        0
    """
    document = {
        "version": JSON_VERSION,
        "exit_status": report.exit_status,
        "files": len(report.files),
        "findings": [finding.to_json() for finding in report.findings],
        "problems": [problem.to_json() for problem in report.problems],
        "fixed": report.fixed,
        "totals": _codes(report.findings),
        "directories": _directories(report.findings),
    }
    return json.dumps(document, indent=2)


def diff_lines(report: Report) -> Iterator[str]:
    """What `--fix` would change, as a unified diff."""
    for path, new in report.rewritten.items():
        old = report.sources[path]
        yield from difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="", n=2)


def rule_lines() -> Iterator[str]:
    """All rules, one line each.

    Example:
        >>> next(rule_lines()).startswith("EH001 numpy-import")
        True
    """
    for rule in all_rules():
        yield f"{rule.code} {rule.name} ({rule.ruleset}, {rule.severity.value}): {rule.summary}"
