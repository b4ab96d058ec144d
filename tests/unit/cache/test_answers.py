"""First answers come first: what can wait does, but never for ever."""

import gc
import os
import sys
import threading
import time

import pytest

from pyflame_rt.cache.answers import RUN_FOLLOWS, answering, last_answer, wait_for_answers
from pyflame_rt.cache.writer import CacheWriter


def test_the_end_of_the_last_answer_is_known():
    begin = time.monotonic()
    with answering(), answering():
        assert last_answer() < begin
    assert begin <= last_answer() <= time.monotonic()


def test_waiting_ends_with_the_answers():
    waited, inside, gate = [], threading.Event(), threading.Event()

    def answer():
        with answering():
            inside.set()
            assert gate.wait(120)

    thread = threading.Thread(target=answer)
    thread.start()
    assert inside.wait(120)
    waiter = threading.Thread(target=lambda: waited.append(wait_for_answers(threading.Event())))
    waiter.start()
    waiter.join(0.12)
    assert not waited
    gate.set()
    waiter.join(120)
    thread.join(120)
    assert waited == [None]


def test_who_has_a_session_runs_it_before_others_begin():
    with answering(RUN_FOLLOWS):
        begin = time.monotonic()
    wait_for_answers(threading.Event())
    assert time.monotonic() - begin >= RUN_FOLLOWS


def test_the_run_that_followed_is_not_waited_for_again():
    with answering(1000.0):
        pass
    with answering():
        pass
    wait_for_answers(threading.Event())  # else until the test is ended


def test_answers_leave_what_belongs_to_the_whole_process_alone():
    before = sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()
    with answering():
        assert (sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()) == before
    assert (sys.getswitchinterval(), gc.isenabled(), gc.get_threshold()) == before


def test_an_answer_that_fails_is_over():
    with pytest.raises(KeyError), answering():
        raise KeyError
    wait_for_answers(threading.Event())


def test_who_is_in_a_hurry_does_not_wait():
    hurry = threading.Event()
    hurry.set()
    with answering():
        wait_for_answers(hurry)


def test_a_writer_rests_meanwhile_and_is_done_when_waited_for():
    writer, done = CacheWriter(), []
    with answering():
        writer.submit(lambda: done.append(1))
        time.sleep(0.3)  # longer than it rests anyway
        assert not done
        writer.wait()
        assert done == [1]
    writer.submit(lambda: done.append(2))
    deadline = time.monotonic() + 120
    while len(done) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done == [1, 2]


def test_a_writer_is_in_a_hurry_only_while_somebody_waits():
    writer, done = CacheWriter(), []
    writer.wait()  # there is nothing to wait for
    with answering():
        writer.submit(lambda: done.append(1))
        time.sleep(0.3)
        assert not done
        writer.wait()
        writer.submit(lambda: done.append(2))
        time.sleep(0.3)
        assert done == [1]
        writer.wait()
    assert done == [1, 2]


def test_a_job_may_wait_for_the_writer_itself():
    writer, done = CacheWriter(), []
    writer.submit(lambda: done.append(writer.wait()))
    writer.wait()
    assert done == [None]


def test_waiting_for_a_writer_that_others_give_jobs_to():
    """Whoever waits must never meet a thread that was not started yet."""
    writer, done, faults = CacheWriter(), [], []

    def work():
        try:
            for _ in range(100):
                writer.submit(lambda: done.append(1))
                writer.wait()
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(done) == 400


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_the_parents_answers():
    with answering():
        child = os.fork()
        if child == 0:
            wait_for_answers(threading.Event())
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
