"""Sizes are checked before memory is taken, by default and with a limit."""

import resource

import numpy as np
import pytest

from pyflame_rt import DType, Graph, InferenceSession, MemoryLimitError, PyFlameRTError, SessionOptions
from pyflame_rt.graph.budget import ALWAYS, AMPLIFICATION, SHARE, Budget, check_memory, machine_memory
from tests.fuzz.structures import structures

PROVIDERS = ["CPUExecutionProvider", "ReferenceExecutionProvider"]
SIZED = [name for name, _ in structures() if name.endswith(" 2147483648") and not name.startswith(("input", "Loop"))]


def grown(size):
    graph = Graph("grown")
    graph.add_input("x", [4])
    graph.add_initializer("s", np.array([size, 4], np.int64))
    graph.add_node("wide", "Expand", ["x", "s"], ["w"])
    graph.add_node("less", "Neg", ["w"], ["y"])
    graph.add_output("y", None)
    return graph


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_default_refuses_what_a_small_model_has_no_reason_for(provider):
    session = InferenceSession(grown(2**30), providers=[provider])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MemoryLimitError, match=r"'wide'.*memory_limit"):
        session.run(None, {"x": np.ones(4, np.float32)})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes: none of the 16 GB


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_limit_of_the_users_counts_both_ways(provider):
    feed = {"x": np.ones(4, np.float32)}
    small = InferenceSession(grown(100_000), SessionOptions(memory_limit=1_000_000), providers=[provider])
    with pytest.raises(MemoryLimitError, match="1000000"):
        small.run(None, feed)
    large = InferenceSession(grown(100_000), SessionOptions(memory_limit=100_000_000), providers=[provider])
    assert large.run(None, feed)[0].shape == (100_000, 4)


@pytest.mark.parametrize("name", SIZED)
def test_sizes_in_files_are_checked_first(name):
    data = dict(structures())[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = made_bytes(data)
    assert isinstance(outcome, PyFlameRTError) or outcome < 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # kilobytes


def made_bytes(data):
    """Bytes of the outputs of a run, or the typed error it ends in."""
    try:
        session = InferenceSession(data)
        shape = [d or 1 for d in session.get_inputs()[0].shape]
        return sum(a.nbytes for a in session.run(None, {"x": np.ones(shape, np.float32)}))
    except PyFlameRTError as error:
        return error


def test_what_is_allowed():
    share = int(machine_memory() * SHARE)
    assert Budget().allowed(0) == share
    assert Budget(model=True).allowed(0) == min(share, ALWAYS)
    assert Budget(model=True).allowed(ALWAYS) == min(share, AMPLIFICATION * ALWAYS)
    assert Budget(limit=5, model=True).allowed(10**12) == 5
    check_memory("little", 100)
    with pytest.raises(MemoryLimitError, match="everything"):
        check_memory("everything", machine_memory())


def test_strings_and_patterns_take_no_time():
    graph = Graph("g")
    graph.add_input("x", ["N"], DType.String)
    graph.add_node("match", "RegexFullMatch", ["x"], ["y"], {"pattern": "(a*)*(a*)*b"})
    graph.add_output("y", ["N"], DType.Bool)
    text = np.array(["a" * 20_000, "a" * 100 + "b"], object)
    assert InferenceSession(graph).run(None, {"x": text})[0].tolist() == [False, True]
    graph.nodes[0].attributes["pattern"] = r"(a)\1"
    with pytest.raises(PyFlameRTError, match="backreferences"):
        InferenceSession(graph).run(None, {"x": text})
