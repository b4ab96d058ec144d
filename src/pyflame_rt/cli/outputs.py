"""Files that commands write: models in a known format, and never over what the command reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyflame_rt.graph.errors import InputError, UnsupportedFormatError

__all__ = ["Output", "check_model_output", "keep_sources"]

Output = Annotated[Path, typer.Option("--output", "-o", help="The .onnx or .pfm file to write.")]


def check_model_output(target: Path, *sources: Path | str) -> None:
    """Refuse to write a model over what it is made from, or as something else than .onnx and .pfm."""
    if target.suffix.lower() not in (".onnx", ".pfm"):
        raise UnsupportedFormatError(f"cannot write {target.name!r}: the suffix must be .pfm or .onnx")
    keep_sources(target, *sources)


def keep_sources(target: Path | None, *sources: Path | str) -> None:
    """Refuse to write over a file that is read, whatever name it has there; sources may be NAME=FILE."""
    if target is None or not target.exists():
        return
    for source in sources:
        for path in {Path(source), Path(str(source).partition("=")[2])}:
            if path.is_file() and path.samefile(target):
                raise InputError(f"{str(target)!r} is what this reads: give another file to write")
