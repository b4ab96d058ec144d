"""Wrong programs end in an error of ours: every builtin with every kind of argument, and mutated programs."""

import random

import pytest

from tests.unit.wsesim.misuse.builtins import PLACES, program
from tests.unit.wsesim.misuse.corpus import LIBRARY_FILES, PROGRAMS
from tests.unit.wsesim.misuse.mutate import mutated
from tests.unit.wsesim.misuse.outcome import outcome
from wsesim.csl.builtins.registry import BUILTINS

ARCHES = ("wse2", "wse3")
NAMES = sorted(BUILTINS)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("arch", ARCHES)
def test_the_programs_run_as_they_are(name, arch):
    assert outcome(PROGRAMS[name], arch, strict=True) in ("runs", "unread-wavelets")


def misuse(name, seeds):
    return [
        outcome(program(name, BUILTINS[name], place, seed), ARCHES[seed % 2], strict=seed % 3 == 0)
        for place in PLACES
        for seed in seeds
    ]


@pytest.mark.parametrize("name", NAMES[::4])
def test_a_builtin_used_wrongly_is_named(name):
    assert misuse(name, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_builtin_used_wrongly_is_named(name):
    assert misuse(name, range(40))


def mutants(name, seeds):
    found = []
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        texts = dict(PROGRAMS[name])
        if rng.random() < 0.25:
            path = rng.choice(sorted(LIBRARY_FILES))
            texts[path] = mutated(LIBRARY_FILES[path], rng, NAMES)
        else:
            file = "layout.csl" if rng.random() < 0.25 else "pe.csl"
            texts[file] = mutated(texts[file], rng, NAMES)
        found.append(outcome(texts, rng.choice(ARCHES), strict=rng.random() < 0.5))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_mutants_run_or_say_what_is_wrong(name):
    assert len(set(mutants(name, range(20)))) > 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("name", PROGRAMS)
def test_many_mutants_run_or_say_what_is_wrong(name, part):
    assert mutants(name, range(100 + 50 * part, 150 + 50 * part))
