"""Where the command line begins, and where its errors end."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.render import errors
from pyflame_rt.graph.errors import PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

# The base of all errors of usage; typer has it under one name or another, but does not export it.
_NOT_UNDERSTOOD: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process.

    Exit codes: 0 when all is well, 1 when a model or a run fails (one line on standard error
    says why), 2 when the command is not understood. With ``--json`` the error is a document
    ``{"error": {"type": ..., "message": ...}}`` on standard error.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in given
    try:
        code = app(given, prog_name="pyflame-rt", standalone_mode=not as_json)
    except (PyFlameRTError, OSError) as error:
        _tell(type(error).__name__, " ".join(str(error).split()) or type(error).__name__, as_json)
        sys.exit(1)
    except _NOT_UNDERSTOOD as error:
        _tell("UsageError", error.format_message(), as_json)
        sys.exit(2)
    sys.exit(code)


def _tell(kind: str, message: str, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"error": {"type": kind, "message": message}})
        errors.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
