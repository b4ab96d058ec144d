"""Settings: which rules run, which paths are left out; from `pyproject.toml` and switches."""

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emberharmony.lint.names import names
from emberharmony.lint.registry import PURITY, TORCH_STYLE, Rule, all_rules
from emberharmony.lint.source import MAX_FILE_BYTES

__all__ = ["GROUPS", "RULESETS", "SYNTAX_ERROR", "Settings", "UsageError", "load_settings"]

GROUPS = ("conversion", "numpy", "operators", "precision")
RULESETS = (PURITY, TORCH_STYLE)
SYNTAX_ERROR = "EH900"

_TABLE = "tool.emberharmony.lint"
_KEYS = names("exclude ignore max-file-bytes per-path-ignores rules select")


class UsageError(Exception):
    """A switch or setting that means nothing; the message says which and what would.

    Example:
        >>> Settings(select=("EH8",)).check()
        Traceback (most recent call last):
        ...
        emberharmony.lint.config.UsageError: no rule matches 'EH8'; codes look like EH001, EH0, EH
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """What to check and what to leave out.

    Attributes:
        rulesets: Names of the rule sets to run.
        groups: When not empty, only rules of these groups run.
        select: When not empty, only rules with these codes or code prefixes run, from any set.
        ignore: Codes or code prefixes to leave out.
        exclude: Paths, names or patterns of files and directories to leave out.
        per_path_ignores: Pattern of a path, and the codes to leave out there.
        base: The directory patterns are relative to.
        max_file_bytes: Larger files are refused.

    Example:
        >>> [rule.code for rule in Settings(groups=("operators",)).rules()]
        ['EH301']
    """

    rulesets: tuple[str, ...] = (PURITY,)
    groups: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_path_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    base: Path = field(default_factory=Path.cwd)
    max_file_bytes: int = MAX_FILE_BYTES

    def check(self) -> None:
        """Refuse names and codes that match nothing.

        Raises:
            UsageError: One of them does.
        """
        for name in self.rulesets:
            if name not in RULESETS:
                raise UsageError(f"no rule set {name!r}; there are {', '.join(RULESETS)}")
        known = [rule.code for rule in all_rules()] + [SYNTAX_ERROR]
        listed = [code for codes in self.per_path_ignores.values() for code in codes]
        for code in (*self.select, *self.ignore, *listed):
            if not code or not any(k.startswith(code) for k in known):
                message = f"no rule matches {code!r}; codes look like EH001, EH0, EH"
                raise UsageError(message)

    def rules(self) -> tuple[Rule, ...]:
        """The rules that run; those asked for by code or by group count as errors."""
        chosen: list[Rule] = []
        for rule in all_rules():
            if _matches(rule.code, self.ignore) or not self._wants(rule):
                continue
            chosen.append(rule.as_error() if self.select or self.groups else rule)
        return tuple(chosen)

    def _wants(self, rule: Rule) -> bool:
        if self.select and not _matches(rule.code, self.select):
            return False
        if self.groups and not rule.groups & set(self.groups):
            return False
        return bool(self.select) or rule.ruleset in self.rulesets

    def reports(self, code: str) -> bool:
        """Whether findings with this code are shown at all."""
        return not _matches(code, self.ignore)

    def relative(self, path: Path) -> str:
        """A path as patterns see it: from `base`, with forward slashes."""
        absolute = path if path.is_absolute() else Path.cwd() / path
        try:
            return absolute.relative_to(self.base).as_posix()
        except ValueError:
            return absolute.as_posix()

    def is_excluded(self, path: Path) -> bool:
        """Whether a file or directory is left out."""
        return any(_path_matches(self.relative(path), pattern) for pattern in self.exclude)

    def ignored_at(self, path: Path) -> tuple[str, ...]:
        """Codes left out for this file."""
        relative = self.relative(path)
        return tuple(
            code
            for pattern, codes in self.per_path_ignores.items()
            if _path_matches(relative, pattern)
            for code in codes
        )

    def extended(self, *, exclude: Iterable[str] = (), ignore: Iterable[str] = (), **changes: Any) -> "Settings":
        """A copy with more exclusions, and with the other given fields replaced."""
        return replace(
            self,
            exclude=(*self.exclude, *exclude),
            ignore=(*self.ignore, *ignore),
            **{name: value for name, value in changes.items() if value},
        )


def _matches(code: str, prefixes: Iterable[str]) -> bool:
    return any(code.startswith(prefix) for prefix in prefixes)


def _path_matches(relative: str, pattern: str) -> bool:
    """Whether a pattern names the path or a directory above it.

    A pattern without a slash is compared with every component, one with a slash with the
    whole path from the base directory.
    """
    pattern = pattern.removeprefix("./").rstrip("/").removesuffix("/**")
    parts = [part for part in relative.split("/") if part]
    if "/" not in pattern:
        return any(fnmatch.fnmatchcase(part, pattern) for part in parts)
    heads = ("/".join(parts[: count + 1]) for count in range(len(parts)))
    absolute = "/" if relative.startswith("/") else ""
    return any(fnmatch.fnmatchcase(absolute + head, pattern) for head in heads)


def load_settings(start: Path, file: Path | None = None) -> Settings:
    """Settings from the nearest `pyproject.toml` at or above `start`, or from `file`.

    Args:
        start: The file or directory that is going to be checked.
        file: A toml file to read instead of searching.

    Returns:
        The settings; the defaults when there is no `[tool.emberharmony.lint]` table.

    Raises:
        UsageError: The table has unknown keys or values of the wrong type, or the file that
            was asked for cannot be read.
    """
    found = file if file is not None else _nearest(start)
    if found is None:
        return Settings()
    try:
        data = tomllib.loads(found.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{found}: {error}") from error
    table = data
    for key in _TABLE.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError(f"{found}: [{_TABLE}] is not a table")
    return _from_table(table, found)


def _nearest(start: Path) -> Path | None:
    try:
        here = start.resolve()
        candidates = [directory / "pyproject.toml" for directory in (here, *here.parents)]
        return next((file for file in candidates if file.is_file()), None)
    except (OSError, ValueError, RuntimeError):
        # No such name, or links in a circle: the path itself is reported when it is opened.
        return None


def _from_table(table: Mapping[str, Any], file: Path) -> Settings:
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        names = ", ".join(sorted(_KEYS))
        raise UsageError(f"{file}: [{_TABLE}] has no key {unknown[0]!r}; there are {names}")
    ignores = table.get("per-path-ignores", {})
    if not isinstance(ignores, dict):
        raise UsageError(f"{file}: [{_TABLE}.per-path-ignores] is not a table")
    limit = table.get("max-file-bytes", MAX_FILE_BYTES)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise UsageError(f"{file}: max-file-bytes must be a positive integer, not {limit!r}")
    return Settings(
        rulesets=_strings(table.get("rules", [PURITY]), "rules", file),
        select=_strings(table.get("select", []), "select", file),
        ignore=_strings(table.get("ignore", []), "ignore", file),
        exclude=_strings(table.get("exclude", []), "exclude", file),
        per_path_ignores={k: _strings(v, k, file) for k, v in ignores.items()},
        base=file.resolve().parent,
        max_file_bytes=limit,
    )


def _strings(value: object, key: str, file: Path) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"{file}: {key} must be a list of strings, not {value!r}")
    if not all(isinstance(item, str) for item in value):
        raise UsageError(f"{file}: {key} must be a list of strings, not {value!r}")
    return tuple(value)
