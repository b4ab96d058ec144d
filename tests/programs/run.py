"""Runs a program written for torch with either framework: its text is the same but for the imports."""

from __future__ import annotations

import re
from pathlib import Path

ORIGINALS = Path(__file__).with_name("originals")
NAMES = sorted(path.stem for path in ORIGINALS.glob("[!_]*.py"))
# `import torch` becomes `import pyflame as torch`, `from torch.x import y` becomes `from pyflame.x import y`.
EDITS = [(r"^import torch$", "import pyflame as torch"), (r"^(import|from) torch\b", r"\1 pyflame")]


def ported(text: str) -> str:
    """The program with other imports."""
    for pattern, other in EDITS:
        text = re.sub(pattern, other, text, flags=re.MULTILINE)
    return text


def program(name: str, framework: str):
    """The `main` of a program."""
    path = ORIGINALS / f"{name}.py"
    text = path.read_text("utf-8")
    if framework == "pyflame":
        text = ported(text)
    namespace = {"__name__": f"{name}_in_{framework}", "__file__": str(path)}
    exec(compile(text, f"{path} ({framework})", "exec"), namespace)  # noqa: S102 -- a file of this repository
    return namespace["main"]
