"""Finding the Python files below the given paths."""

import os
from collections.abc import Iterator
from pathlib import Path

from emberharmony.lint.config import Settings
from emberharmony.lint.findings import FileProblem
from emberharmony.lint.names import names

__all__ = ["python_files"]

# Never the user's own code; hidden directories are skipped as well.
_SKIPPED = names("__pycache__ build dist node_modules site-packages venv")


def python_files(path: Path, settings: Settings) -> Iterator[Path | FileProblem]:
    """The file `path`, or all `.py` files of the directory `path`, in a stable order.

    Links to directories below `path` are not followed, so a loop cannot trap the walk.

    Args:
        path: A file, taken whatever its name, or a directory.
        settings: Says what to leave out.

    Yields:
        Files to check, and a `FileProblem` for what could not be reached.
    """
    try:
        is_directory = path.is_dir()
        exists = is_directory or os.path.lexists(path)
    except (OSError, ValueError) as error:
        yield FileProblem(str(path), "unreadable", str(error))
        return
    if not exists:
        yield FileProblem(str(path), "missing", "no such file or directory")
    elif settings.is_excluded(path):
        return
    elif is_directory:
        yield from _walk(path, settings)
    else:
        yield path


def _walk(top: Path, settings: Settings) -> Iterator[Path | FileProblem]:
    problems: list[FileProblem] = []

    def note(error: OSError) -> None:
        name = os.fspath(error.filename or top)
        problems.append(FileProblem(name, "unreadable", error.strerror or str(error)))

    for directory, subdirectories, files in os.walk(top, onerror=note):
        here = Path(directory)
        subdirectories[:] = sorted(
            name
            for name in subdirectories
            if name not in _SKIPPED and not name.startswith(".") and not settings.is_excluded(here / name)
        )
        for name in sorted(files):
            if name.endswith(".py") and not settings.is_excluded(here / name):
                yield here / name
    yield from problems
