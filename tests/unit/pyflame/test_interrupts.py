"""Ctrl-C that waits, and handlers that are always put back."""

import signal
import threading

import pytest

from pyflame import interrupts
from pyflame.interrupts import Handler, Uninterrupted


@pytest.fixture(autouse=True)
def same_handler_afterwards():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_heard_once_at_the_end():
    done = []

    def work():
        with Uninterrupted():
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
                done.append(1)
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1, 1, 1]


def test_an_exception_of_the_lines_is_its_context():
    def work():
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("of the lines")

    with pytest.raises(KeyboardInterrupt) as found:
        work()
    assert isinstance(found.value.__context__, ValueError)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_signal_at_the_change_itself_leaves_the_old_handler(monkeypatch, moment, call):
    """Python runs pending handlers inside `signal.signal`, and may run one right after it."""
    change, calls = signal.signal, []

    def interrupted(number, handler):
        calls.append(handler)
        if moment == "after":
            change(number, handler)
        if len(calls) == call:
            raise KeyboardInterrupt
        return change(number, handler)

    monkeypatch.setattr(interrupts.signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), Handler(lambda *_: None):
        pass


def test_users_own_handlers_are_told_and_ignored_signals_stay_ignored():
    told, before = [], signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, lambda number, _: told.append(number))
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert told == []
        assert told == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_not_concerned():
    seen = []

    def work():
        with Uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
