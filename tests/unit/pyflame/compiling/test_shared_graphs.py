"""Graphs that one thread looks through while another evaluates a part of them."""

import threading

import numpy as np
import pytest

import pyflame as pf
from pyflame import evaluation, exporting, inspection
from pyflame.compiling import trace
from pyflame.tools import visualization

MODULES = (evaluation, trace, exporting, inspection, visualization)


class Watched:
    """The lock, which tells when a thread other than the first has to wait for it."""

    def __init__(self, lock):
        self.lock, self.first, self.told = lock, threading.get_ident(), threading.Event()

    def acquire(self):
        if threading.get_ident() != self.first and not self.lock.acquire(blocking=False):
            self.told.set()
            self.lock.acquire()
        elif threading.get_ident() == self.first:
            self.lock.acquire()

    def release(self):
        self.lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


@pytest.fixture
def meanwhile(monkeypatch):
    """When a graph was looked through, and before it is written down, another thread evaluates a tensor.

    It gets as far as it can: to its end, or to where it waits for the lock.
    """
    threads = []

    def start(tensor):
        lock, real = Watched(evaluation.graphs), evaluation.Work

        def evaluated():
            try:
                tensor.numpy()
            finally:
                lock.told.set()

        def work(*args, **options):
            made = real(*args, **options)
            if threading.get_ident() == lock.first and not threads:
                threads.append(threading.Thread(target=evaluated))
                threads[0].start()
                lock.told.wait()
            return made

        for module in MODULES:
            monkeypatch.setattr(module, "graphs", lock)
            monkeypatch.setattr(module, "Work", work)

    yield start
    for thread in threads:
        thread.join()
    assert threads, "no graph was looked through"


def pending():
    return pf.exp(pf.from_numpy(np.arange(4, dtype=np.float32)) / 2) * 3


def given(size):
    return pf.from_numpy(np.ones(size, np.float32))


EXPECTED = np.exp(np.arange(4, dtype=np.float32) / 2) * 3


def test_a_trace_that_gives_back_what_is_being_evaluated(meanwhile):
    held = pending()
    f = pf.compile(lambda x: (x * 2, held))
    meanwhile(held)
    for _ in range(3):
        double, same = f(given(2))
        np.testing.assert_array_equal(double.numpy(), [2, 2])
        np.testing.assert_allclose(same.numpy(), EXPECTED, rtol=1e-6)


def test_a_trace_that_differentiates_what_is_being_evaluated(meanwhile):
    weight = pf.from_numpy(np.arange(4, dtype=np.float32)).requires_grad_()
    between = pf.exp(weight)
    loss = (between * between).sum()

    @pf.compile
    def f(x):
        loss.backward(retain_graph=True)
        return x * 2

    meanwhile(between)
    f(given(2))
    np.testing.assert_allclose(weight.grad.numpy(), 2 * np.exp(2 * np.arange(4)), rtol=1e-5)


def test_a_trace_that_reads_what_is_being_evaluated(meanwhile):
    held = pending()
    f = pf.compile(lambda x: x * held)
    meanwhile(held)
    np.testing.assert_allclose(f(given(4)).numpy(), EXPECTED, rtol=1e-6)


def test_an_export_of_what_is_being_evaluated(meanwhile):
    held = pending()
    meanwhile(held)
    graph = pf.exporting.model_graph(lambda x: x * held, given(4))
    assert [node.op_type for node in graph.nodes] == ["Mul"]


@pytest.mark.parametrize("draw", [lambda t: pf.get_graph(t).to_runtime(), visualization._runtime_graph])
def test_a_drawing_of_what_is_being_evaluated(meanwhile, draw):
    held = pending()
    last = held + 1
    meanwhile(held)
    assert [node.op_type for node in draw(last).nodes][-1] == "Add"
