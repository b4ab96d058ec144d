"""Atomic file replacement: written beside its place, then moved there, with errors that name the file asked for."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pyflame_rt.graph.errors import FileWriteError, UnsupportedFormatError

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyflame_rt.graph.graph import Graph

__all__ = ["refuse_scripts", "remove_abandoned", "replacing"]

_SCRATCH = r"\.\d+\.[0-9a-f]{8}(?:\.\w+)?"


def refuse_scripts(graph: Graph) -> None:
    """Refuse to write a graph whose nodes are only made when the shapes of its inputs are known.

    Raises:
        UnsupportedFormatError: It is a script of torch that was not opened yet.
    """
    if any(node.domain == "torch" for node in graph.nodes):
        raise UnsupportedFormatError(
            f"{graph.name!r} is a script whose graph depends on the shapes of its inputs: give them at import "
            "(ImportOptions.input_shapes, or --shape)"
        )


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A file to write to that takes the place of ``path`` at the end: readers see the old one or the new one.

    What writers of the same file left beside it when they were killed is removed.

    Raises:
        FileWriteError: The folder is not there, the disk is full, or the like; what was there before is as it was.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(folder + "/a") as file:
        ...         _ = file.write(b"whole")
        ...     Path(folder, "a").read_bytes()
        b'whole'
    """
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        if not target.parent.is_dir():
            raise FileWriteError(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}")
        if target.is_dir():
            raise FileWriteError(f"cannot write {str(target)!r}: a folder has that name")
        remove_abandoned(target.parent, re.escape(target.name))
        # Not mkstemp: a file made by open has the permissions that the umask allows.
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, target)
    except FileWriteError:
        raise
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise FileWriteError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove what writers that were killed left unfinished.

    Args:
        folder: where they wrote.
        names: a regular expression of the names of the files they were to write.
    """
    # The number of a process and eight digits, perhaps a suffix; some writers are given such a name to write.
    pattern = re.compile(rf"\.+(?:{names})(?:{_SCRATCH})?\.(\d+)\.[0-9a-f]{{8}}(?:\.\w+)?")
    with suppress(OSError):
        for name in os.listdir(folder):
            match = pattern.fullmatch(name)
            if match is not None and not _is_alive(int(match[1])) and not _is_locked(folder / name):
                with suppress(OSError):
                    os.unlink(folder / name)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # there, asking would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True


def _is_locked(path: Path) -> bool:
    """Whether a writer has the file open: one in another container, whose number means nothing here."""
    if fcntl is None:
        return True
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
