"""Generated programs with changes in their text run to an end or say in an error of ours what is wrong."""

import functools
import random
import time

import pytest

from pyflame_rt.backends.wse.emit.hostrun import run_program
from pyflame_rt.backends.wse.simulate import SimulatedDevice, compile_sources
from tests.unit.backends.wse.running import planned
from tests.unit.backends.wse.table import CASES
from tests.unit.wsesim.misuse.mutate import mutated
from wsesim import watch
from wsesim.csl.builtins.registry import BUILTINS
from wsesim.csl.syntax.diagnostics import CompileError, CslError
from wsesim.csl.syntax.parser import parse_text
from wsesim.fabric import FabricError, load
from wsesim.host import HostSession

NAMES = sorted(BUILTINS)
OPS = (
    *(
        "Softmax",
        "MatMul",
        "Gemm",
        "Conv",
        "MaxPool",
        "AveragePool",
        "Gather",
        "ScatterElements",
        "ReduceSum",
        "ArgMax",
    ),
    *("Add", "Cast", "Where", "Transpose", "Concat", "CumSum", "LayerNormalization", "Attention", "Resize", "Slice"),
)
CHOSEN = [case for case in CASES if case.op in OPS]
CYCLES = 300_000
SECONDS = 60.0


class Endless(Exception):
    """A mutant took longer than any of these programs may."""


class Device(SimulatedDevice):
    """With an end to programs that have none."""

    def __init__(self, program):
        self.host = HostSession(load(program, bounded=True, strict=True, max_cycles=CYCLES))
        self.host.start()


@functools.cache
def generated(number, grid, arch):
    """Sources, manifest and arrays of one case."""
    case = CHOSEN[number]
    graph = case.graph(case.types[0])
    sources, manifest, plan = planned(graph, grid, target=arch)
    return sources, manifest, {**plan.constants, **case.feeds(graph, 0)}


def outcome(sources, manifest, arrays, arch):
    """``runs`` or the name of the error; whatever else is raised comes through."""
    end = time.thread_time() + SECONDS

    def look():
        if time.thread_time() > end:
            raise Endless

    try:
        with watch.watched(look):
            device = Device(compile_sources(sources, manifest, arch))
            run_program(manifest, dict(arrays), device)
            device.stop()
    except CompileError as problem:
        return problem.diagnostics[0].code
    except (CslError, FabricError) as problem:
        return getattr(problem, "name", "input")
    return "runs"


def mutant(seed):
    """What becomes of one mutant."""
    rng = random.Random(seed)
    arch = rng.choice(("wse2", "wse3"))
    sources, manifest, arrays = generated(rng.randrange(len(CHOSEN)), rng.choice(((1, 1), (1, 3), (2, 2))), arch)
    files = sorted(name for name in sources if name.endswith(".csl"))
    name = rng.choice((*files, "pe_program.csl", "pe_program.csl"))
    text = mutated(sources[name], rng, NAMES)
    for _ in range(6):  # most changes break the grammar, and what comes after it is to be reached
        if _reads(text):
            break
        text = mutated(sources[name], rng, NAMES)
    return outcome({**sources, name: text}, manifest, arrays, arch)


def _reads(text):
    try:
        parse_text(text)
    except CompileError:
        return False
    return True


def test_some_mutants():
    assert len({mutant(seed) for seed in range(25)}) > 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_many_mutants(part):
    assert [mutant(seed) for seed in range(100 + 50 * part, 150 + 50 * part)]
