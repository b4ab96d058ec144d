"""`# noqa` comments."""

import re
from collections.abc import Iterable, Mapping

from emberharmony.lint.findings import Finding

__all__ = ["is_suppressed", "suppressed_codes", "without_suppressed"]

_CODE = r"[A-Z]+[0-9]+"
_NOQA = re.compile(rf"#\s*noqa\b(?:\s*:\s*(?P<codes>{_CODE}(?:[\s,]+{_CODE})*))?", re.IGNORECASE)


def suppressed_codes(comment: str) -> frozenset[str] | None:
    """The codes a comment silences: None for none, an empty set for all.

    Example:
        >>> sorted(suppressed_codes("# noqa: EH001, EH002 adapters only"))
        ['EH001', 'EH002']
        >>> suppressed_codes("# noqa")
        frozenset()
        >>> suppressed_codes("# why not") is None
        True
    """
    match = _NOQA.search(comment)
    if match is None:
        return None
    codes = match["codes"]
    return frozenset() if codes is None else frozenset(re.split(r"[\s,]+", codes.upper()))


def is_suppressed(finding: Finding, comments: Mapping[int, str]) -> bool:
    """Whether a comment on the finding's first or last line silences it."""
    for line in {finding.line, finding.end_line}:
        codes = suppressed_codes(comments.get(line, ""))
        if codes is not None and (not codes or finding.code in codes):
            return True
    return False


def without_suppressed(findings: Iterable[Finding], comments: Mapping[int, str]) -> list[Finding]:
    """The findings no comment silences."""
    return [finding for finding in findings if not is_suppressed(finding, comments)]
