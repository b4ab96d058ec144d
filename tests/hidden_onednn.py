"""A pytest plugin (`-p tests.hidden_onednn`): oneDNN and libgomp are not there, as where their wheels are missing."""

from typing import Never

from pyflame_rt.backends.cpu.onednn import library


def _find() -> Never:
    raise library.OneDnnUnavailable("hidden for this test")


def hide() -> None:
    """Make this process find neither library; importing this module alone changes nothing."""
    library._find = _find
    library._open_gomp = lambda: None
    library._library = library._gomp = library._failure = None


def pytest_configure() -> None:
    hide()
