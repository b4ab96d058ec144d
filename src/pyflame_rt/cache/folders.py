"""Folders and files that are the user's alone: machine code is loaded from nowhere else."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from pyflame_rt.graph.locks import new_lock

__all__ = ["fault_inside", "fault_of_folder", "make_folder", "open_own", "private_folder", "read_own", "usable_folder"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_TRIES = 5  # to delete a folder that somebody still writes to
_SYSTEM = 0  # the superuser, who owns /home and may write anywhere
log = logging.getLogger("pyflame_rt")
_lock = new_lock()
_usable: dict[Path, Path | None] = {}
_private: list[Path] = []
_gone: list[Path] = []  # the private folder, when the process ends: threads may still be writing


def fault_of_folder(folder: str | os.PathLike[str]) -> str:
    """Why a folder must not be used: somebody else may write there, or put another folder in its place.

    The folder must be the user's own, no link, and writable by nobody else. So must every folder on the way to it, or
    be the system's; where others may write, as in /tmp, they must not be able to move what is not theirs.

    Args:
        folder: need not exist; then the folder it would be made in counts.

    Returns:
        The reason, beginning with the path at fault; empty when there is none.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> fault_of_folder(folder)
        ''
        >>> os.chmod(folder, 0o777)
        >>> fault_of_folder(folder) == f"{os.path.realpath(folder)} may be written to by others"
        True
    """
    if os.name != "posix":
        return ""
    given = Path(os.path.abspath(folder))
    try:
        for path in [*reversed(given.parents), given]:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) and (path == given or found.st_uid not in (os.geteuid(), _SYSTEM)):
                return f"{path} is a link"
    except FileNotFoundError:  # it will be made
        pass
    except OSError as error:
        return f"{given} cannot be looked at ({error.strerror})"
    real = Path(os.path.realpath(given))
    for path in [*reversed(real.parents), real]:
        try:
            fault = _fault(os.lstat(path), last=path == real)
        except FileNotFoundError:
            return ""
        except OSError as error:
            fault = f"cannot be looked at ({error.strerror})"
        if fault:
            return f"{path} {fault}"
    return ""


def fault_inside(folder: str | os.PathLike[str]) -> str:
    """The same of a folder whose parents were looked at already; one that is not there has no fault."""
    if os.name != "posix":
        return ""
    try:
        fault = _fault(os.lstat(folder), last=True)
    except FileNotFoundError:
        return ""
    except OSError as error:
        fault = f"cannot be looked at ({error.strerror})"
    return f"{os.fspath(folder)} {fault}" if fault else ""


def _fault(found: os.stat_result, *, last: bool) -> str:
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid() and (last or found.st_uid != _SYSTEM):
        return "belongs to somebody else"
    keeps = found.st_mode & stat.S_ISVTX and not last  # others cannot move what is not theirs
    return "may be written to by others" if found.st_mode & _OTHERS_WRITE and not keeps else ""


def make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, for this user alone.

    Raises:
        OSError: It cannot be made.
    """
    if _gone and folder.is_relative_to(_gone[0]):
        raise FileNotFoundError(f"{folder} went with its process")
    try:
        folder.mkdir(mode=0o700)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise


def open_own(path: str | os.PathLike[str]) -> int:
    """A file opened for reading, where it is no link, this user's own, and writable by nobody else.

    Returns:
        The number of the open file.

    Raises:
        OSError: It cannot be opened, or is not such a file.
    """
    # A pipe would be waited for, before anybody could see that it is no file.
    number = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")))
    try:
        found = os.fstat(number)
        own = os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE)
        if not own or not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{os.fspath(path)} is not a file of this user's alone")
    except BaseException:
        os.close(number)
        raise
    return number


def read_own(path: str | os.PathLike[str]) -> bytes:
    """The contents of a file that :func:`open_own` opens."""
    with open(open_own(path), "rb") as file:
        return file.read()


def usable_folder(folder: Path) -> Path | None:
    """The folder, where it is the user's alone; else a private one for this process, after one warning.

    None when there is no such place at all.
    """
    fault = fault_of_folder(folder)
    if not fault:
        return folder
    with _lock:
        if folder not in _usable:
            instead = _usable[folder] = private_folder()
            what = "nothing is kept" if instead is None else "what is compiled is kept for this process only"
            log.warning("the cache folder %s is not used, since %s: %s", folder, fault, what)
        return _usable[folder]


def private_folder() -> Path | None:
    """A new folder that goes when the process ends; the same for every caller. None when none can be made safely."""
    if _private:
        return _private[0]
    import atexit
    import shutil
    import tempfile

    try:
        made = Path(tempfile.mkdtemp(prefix="pyflame-"))
    except OSError:
        return None
    maker = os.getpid()

    def remove() -> None:
        if os.getpid() == maker:  # forked children use it, too
            _gone.append(made)
            for _ in range(_TRIES):
                shutil.rmtree(made, ignore_errors=True)
                if not made.exists():
                    break

    atexit.register(remove)
    if fault_of_folder(made):
        return None
    _private.append(made)
    return made
