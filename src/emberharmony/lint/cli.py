"""The command line: `python -m emberharmony.lint PATH...`."""

import argparse
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from emberharmony.lint.config import GROUPS, RULESETS, Settings, UsageError, load_settings
from emberharmony.lint.engine import lint_paths
from emberharmony.lint.report import diff_lines, json_text, rule_lines, text_lines

__all__ = ["main"]

_ONLY = {
    "conversion": "conversions to and from NumPy arrays (EH2xx)",
    "numpy": "imports and uses of NumPy (EH0xx, EH202)",
    "operators": "Python operators on tensors (EH3xx), as errors; with --fix, rewrite them",
    "precision": "float(), int(), .item() and .tolist() of tensors (EH1xx)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m emberharmony.lint",
        description="Find code that depends on one array library instead of emberharmony.ops.",
        epilog="Exit status: 0 clean, 1 errors found, 2 bad usage or a path not checked.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and directories to check")
    parser.add_argument(
        "--exclude", nargs="+", action="extend", default=[], metavar="D",
        help="names, paths or patterns to leave out (give the paths to check first)",
    )  # fmt: skip
    parser.add_argument("-v", "--verbose", action="store_true", help="also list notes, files and source lines")
    for group in GROUPS:
        parser.add_argument(
            f"--{group}-only", action="append_const", dest="groups", const=group,
            help=f"only {_ONLY[group]}",
        )  # fmt: skip
    parser.add_argument(
        "--rules", type=_words, metavar="SET,...",
        help=f"rule sets to run: {', '.join(RULESETS)} or all (default {RULESETS[0]})",
    )  # fmt: skip
    parser.add_argument("--select", type=_words, metavar="CODE,...", help="only these codes")
    parser.add_argument("--ignore", type=_words, metavar="CODE,...", help="not these codes")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--fix", action="store_true", help="make the mechanical rewrites")
    parser.add_argument("--diff", action="store_true", help="show what --fix would do; no writing")
    _add_configuration(parser)
    parser.add_argument("--list-rules", action="store_true", help="list the rules and stop")
    return parser


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--config", type=Path, metavar="TOML",
        help="file with a [tool.emberharmony.lint] table (default: nearest pyproject.toml)",
    )  # fmt: skip
    where.add_argument("--no-config", action="store_true", help="read no configuration")
    parser.add_argument("--max-bytes", type=_positive, metavar="N", help="refuse larger files (default 2000000)")


def _words(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise argparse.ArgumentTypeError("expected at least one name")
    return found


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _settings_for(options: argparse.Namespace) -> Callable[[Path], Settings]:
    """The configuration nearest to a path, with the switches laid over it."""
    rulesets = RULESETS if options.rules == ("all",) else options.rules

    def settings_for(path: Path) -> Settings:
        loaded = Settings() if options.no_config else load_settings(path, options.config)
        return loaded.extended(
            exclude=options.exclude,
            ignore=options.ignore or (),
            rulesets=rulesets,
            groups=tuple(options.groups or ()),
            select=options.select,
            max_file_bytes=options.max_bytes,
        )

    return settings_for


def _print(lines: Iterable[str]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names need not be text in the terminal's encoding.
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the linter.

    Args:
        arguments: The command line, without the program's name; `sys.argv` when left out.

    Returns:
        0 when clean, 1 with errors found, 2 for bad usage or a path that was not checked.

    Example:
        >>> main(["no-such-file.py"])
        no-such-file.py: missing: no such file or directory
        0 files checked: 0 errors, 0 notes, 1 path not checked
        2
    """
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        if options.list_rules:
            _print(rule_lines())
            return 0
        if not options.paths:
            parser.error("give at least one file or directory to check")
        fix = options.fix or options.diff
        report = lint_paths(options.paths, _settings_for(options), fix=fix, write=not options.diff)
    except SystemExit as stop:
        # argparse exits by itself, after --help as well as after an error.
        return stop.code if isinstance(stop.code, int) else 2
    except UsageError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return 2
    if options.json:
        _print([json_text(report)])
    else:
        _print([*diff_lines(report), *text_lines(report, verbose=options.verbose)])
    return report.exit_status
