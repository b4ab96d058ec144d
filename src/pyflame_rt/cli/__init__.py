"""The command line: ``pyflame-rt info|run|convert|optimize|quantize|prune|verify|explain|diff|wafer|serve``."""

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.entry import main
from pyflame_rt.cli.optimize import optimize as _optimize  # noqa: F401 - adds its command
from pyflame_rt.cli.prune import prune as _prune  # noqa: F401 - adds its command
from pyflame_rt.cli.quantize import quantize as _quantize  # noqa: F401 - adds its command
from pyflame_rt.cli.serve import serve as _serve  # noqa: F401 - adds its command
from pyflame_rt.cli.wafer import wafer as _wafer  # noqa: F401 - adds its command

__all__ = ["app", "main"]
