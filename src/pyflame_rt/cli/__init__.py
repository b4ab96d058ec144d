"""The command line: ``pyflame-rt --help`` lists the commands, which are found by listing this folder."""

import importlib
import pkgutil

from pyflame_rt.cli.commands import app
from pyflame_rt.cli.entry import main

__all__ = ["app", "main"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")
