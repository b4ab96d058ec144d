"""Compiling in several threads leaves Python's limit of recursion as it was."""

import sys
import threading

from wsesim.csl.program.driver import _deep_recursion


def test_threads_that_overlap_put_the_limit_back():
    before = sys.getrecursionlimit()
    inside, leave = threading.Barrier(2), threading.Event()

    def first():
        with _deep_recursion():
            inside.wait()
        leave.set()

    thread = threading.Thread(target=first)
    thread.start()
    with _deep_recursion():
        assert sys.getrecursionlimit() >= 12_000
        inside.wait()
        leave.wait()
        assert sys.getrecursionlimit() >= 12_000
    thread.join()
    assert sys.getrecursionlimit() == before
