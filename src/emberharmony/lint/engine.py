"""Running rules over sources and paths."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emberharmony.lint.config import SYNTAX_ERROR, Settings
from emberharmony.lint.discovery import python_files
from emberharmony.lint.findings import FileProblem, Finding, Severity
from emberharmony.lint.fixing import apply_edits, plan
from emberharmony.lint.registry import Rule
from emberharmony.lint.source import Module, SourceFile, Unreadable, read_source
from emberharmony.lint.suppressions import without_suppressed

__all__ = ["Report", "fix_source", "lint_paths", "lint_source"]

# A rewrite can make another one possible; the chain is short, and an end is guaranteed.
_MAX_FIX_PASSES = 10


@dataclass(slots=True)
class Report:
    """Everything one run found.

    Example:
        >>> Report(files=["a.py"]).exit_status
        0
    """

    files: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    problems: list[FileProblem] = field(default_factory=list)
    fixed: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    rewritten: dict[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """The findings that fail the run."""
        return [finding for finding in self.findings if finding.severity.fails]

    @property
    def exit_status(self) -> int:
        """0 when clean, 1 with errors found, 2 when something could not be checked."""
        if self.problems:
            return 2
        return 1 if self.errors else 0


def lint_source(text: str, settings: Settings | None = None, *, path: str = "<string>") -> list[Finding]:
    r"""Check one source text.

    Args:
        text: Python source; it is parsed, never run.
        settings: Which rules to run; the defaults when left out.
        path: The name to show in findings.

    Returns:
        The findings in the order of the text; a syntax error is a finding too.

    Raises:
        Unreadable: The text is nested too deeply to be analysed, or holds null bytes.

    Example:
        >>> [f.code for f in lint_source("import numpy as np\ny = np.mean(x)")]
        ['EH001', 'EH002']
        >>> lint_source("import numpy as np  # noqa: EH001")
        []
    """
    chosen = Settings() if settings is None else settings
    chosen.check()
    return _check(text, chosen, path)[1]


def _check(text: str, settings: Settings, path: str) -> tuple[Module | None, list[Finding]]:
    ignored = settings.ignored_at(Path(path))
    try:
        module = _parsed(text, path)
        if isinstance(module, Finding):
            is_shown = settings.reports(module.code) and not module.code.startswith(ignored)
            return None, [module] if is_shown else []
        rules = [rule for rule in settings.rules() if not rule.code.startswith(ignored)]
        findings = _without_redundant(rules, [f for rule in rules for f in rule.run(module)])
        kept = without_suppressed(findings, module.comments)
        return module, sorted(kept, key=lambda finding: finding.order)
    except (RecursionError, MemoryError) as error:
        message = "nested too deeply to be analysed"
        raise Unreadable(FileProblem(path, "too-deep", message)) from error


def _parsed(text: str, path: str) -> Module | Finding:
    if "\0" in text:
        raise Unreadable(FileProblem(path, "binary", "contains null bytes"))
    try:
        return Module(path, text)
    except SyntaxError as error:
        return _syntax_error(path, error)
    except ValueError as error:
        raise Unreadable(FileProblem(path, "not-text", str(error))) from error


def _syntax_error(path: str, error: SyntaxError) -> Finding:
    line, column = error.lineno or 1, max(error.offset or 1, 1)
    message = f"syntax error: {error.msg}"
    return Finding(path, SYNTAX_ERROR, message, Severity.ERROR, line, column, line, column)


def _without_redundant(rules: Iterable[Rule], findings: list[Finding]) -> list[Finding]:
    """Drop findings that a more telling rule has at the same place."""
    yields = {rule.code: rule.yields_to for rule in rules}
    stronger: dict[tuple[str, int], list[Finding]] = {}
    for finding in findings:
        stronger.setdefault((finding.code, finding.line), []).append(finding)

    def is_covered(finding: Finding) -> bool:
        return any(
            other.covers(finding) for code in yields[finding.code] for other in stronger.get((code, finding.line), [])
        )

    return [finding for finding in findings if not is_covered(finding)]


def fix_source(text: str, settings: Settings | None = None, *, path: str = "<string>") -> tuple[str, int]:
    r"""Apply the mechanical rewrites to one source text.

    Args:
        text: Python source.
        settings: Which rules may rewrite; the defaults when left out. Operators are rewritten
            only when their group or code is asked for.
        path: The name to show in errors.

    Returns:
        The new text, and how many findings were fixed. Fixing the result changes nothing.

    Example:
        >>> print(fix_source("import numpy as np\ny = np.mean(x, axis=0)")[0])
        from emberharmony import ops
        y = ops.mean(x, axis=0)
    """
    chosen = Settings() if settings is None else settings
    chosen.check()
    total = 0
    for _ in range(_MAX_FIX_PASSES):
        module, findings = _check(text, chosen, path)
        fixable = [f for f in findings if f.fixable and f.severity.fails]
        if module is None or not fixable:
            break
        changed = apply_edits(text, plan(module, fixable, _may_drop_imports(chosen, path)))
        if changed == text or not _parses(changed, path):
            break
        text, total = changed, total + len(fixable)
    return text, total


def _may_drop_imports(settings: Settings, path: str) -> bool:
    """Whether the numpy import itself is under review."""
    ignored = settings.ignored_at(Path(path))
    return any(r.code == "EH001" and not r.code.startswith(ignored) for r in settings.rules())


def _parses(text: str, path: str) -> bool:
    try:
        return isinstance(_parsed(text, path), Module)
    except (Unreadable, RecursionError, MemoryError):
        return False


def lint_paths(
    paths: Sequence[str | os.PathLike[str]],
    settings_for: Callable[[Path], Settings] | None = None,
    *,
    fix: bool = False,
    write: bool = True,
) -> Report:
    """Check files and directories.

    Args:
        paths: Files, taken whatever their name, and directories, searched for `.py` files.
        settings_for: Gives the settings for one of the paths; the defaults when left out.
        fix: Make the mechanical rewrites, then report what remains.
        write: With `fix`, write the files; otherwise report on them as they are, and leave the
            new text in `Report.rewritten`.

    Returns:
        The report; unreadable files are in `problems`, they never raise.
    """
    report = Report()
    seen: set[str] = set()
    for name in paths:
        path = Path(name)
        if not os.fspath(name):
            # Path("") is the current directory; an unset variable must not mean that.
            report.problems.append(FileProblem("''", "missing", "the path is empty"))
            continue
        settings = Settings() if settings_for is None else settings_for(path)
        settings.check()
        for item in python_files(path, settings):
            if isinstance(item, FileProblem):
                report.problems.append(item)
            elif (real := os.path.realpath(item)) not in seen:
                seen.add(real)
                _check_file(item, settings, report, fix=fix, write=write)
    report.findings.sort(key=lambda finding: finding.order)
    return report


def _check_file(path: Path, settings: Settings, report: Report, *, fix: bool, write: bool) -> None:
    shown = str(path)
    try:
        source = read_source(path, shown, settings.max_file_bytes)
        text = _fix_file(path, source, settings, report, write=write) if fix else source.text
        text = text if write else source.text
        findings = _check(text, settings, shown)[1]
    except Unreadable as error:
        report.problems.append(error.problem)
        return
    report.files.append(shown)
    report.findings.extend(findings)
    report.sources[shown] = text


def _fix_file(path: Path, source: SourceFile, settings: Settings, report: Report, *, write: bool) -> str:
    text, count = fix_source(source.text, settings, path=source.path)
    if not count:
        return text
    try:
        encoded = source.encode(text)
        if write:
            path.write_bytes(encoded)
            report.fixed[source.path] = count
    except (OSError, UnicodeError) as error:
        raise Unreadable(FileProblem(source.path, "unreadable", f"not written: {error}")) from error
    report.rewritten[source.path] = text
    return text
