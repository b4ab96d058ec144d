"""Where the command line begins, and where its errors end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.render import errors
from pyflame_rt.graph.errors import PyFlameRTError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process.

    Exit codes: 0 when all is well, 1 when a model or a run fails (one line on standard error
    says why), 2 when the command is not understood.
    """
    try:
        app(list(arguments) if arguments is not None else None, prog_name="pyflame-rt")
    except (PyFlameRTError, OSError) as error:
        errors.print(f"[bold red]error:[/] {_one_line(error)}", highlight=False, soft_wrap=True)
        sys.exit(1)


def _one_line(error: BaseException) -> str:
    from rich.markup import escape

    return escape(" ".join(str(error).split()) or type(error).__name__)
