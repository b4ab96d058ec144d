"""The command line: ``pyflame-rt info|run|convert|verify|explain|diff``."""

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.entry import main

__all__ = ["app", "main"]
