"""Properties that are computed once, and what a fork leaves of them."""

import os
import re
import signal
import threading
from pathlib import Path

import pyflame_rt
from pyflame_rt.graph.cached import cached_property


class Slow:
    """Waits in its property until it is told to go on."""

    def __init__(self):
        self.entered, self.go_on, self.times = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self):
        """Said when the wait is over."""
        self.entered.set()
        self.go_on.wait(60)
        self.times += 1
        return 7


def test_computed_once():
    slow = Slow()
    slow.go_on.set()
    assert (slow.value, slow.value, slow.times) == (7, 7, 1)
    assert isinstance(Slow.value, cached_property)


def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    """Another thread is in a property of one object while the process forks: the child reads that of another."""
    busy, other = Slow(), Slow()
    other.go_on.set()
    thread = threading.Thread(target=lambda: busy.value)
    thread.start()
    assert busy.entered.wait(60)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends a child that waits for ever
        os._exit(0 if other.value == 7 else 1)
    _, status = os.waitpid(child, 0)
    busy.go_on.set()
    thread.join()
    assert status == 0


def test_the_engine_has_no_others():
    pattern = re.compile(r"functools\.cached_property|from functools import .*\bcached_property")
    sources = (Path(pyflame_rt.__file__).parent / "backends").rglob("*.py")
    assert [str(path) for path in sources if pattern.search(path.read_text("utf-8"))] == []
