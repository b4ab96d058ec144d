"""What the batcher's decisions give under load, in virtual time: no clock, no threads, the same on every machine."""

import random
import statistics

import pytest

from tests.unit.batching.virtual import Scene, by_hand, images, sentences

MIXED = [random.Random(3).randint(16, 128) for _ in range(2048)]
MODELS = pytest.mark.parametrize(("seconds", "lengths"), [(sentences, MIXED), (images, [0] * 1024)])


@MODELS
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_many_callers_get_what_batches_by_hand_give(seconds, lengths, noise):
    rate, _ = by_hand(seconds, lengths)
    scene = Scene(seconds, lengths, noise)
    served = scene.callers(64)
    assert sum(served) == len(scene.taken) == len(lengths)
    assert len(lengths) / scene.now >= 0.965 * rate / (1 + noise)
    assert sum(served) ** 2 / (64 * sum(n * n for n in served)) >= 0.98


@MODELS
def test_at_four_fifths_of_the_load_nobody_waits_for_long(seconds, lengths):
    rate, batch = by_hand(seconds, lengths)
    found = []
    for seed in range(1, 6):
        scene = Scene(seconds, lengths)
        scene.arrivals(0.8 * rate, seed)
        found.append(scene.p99() / batch)
        assert max(scene.waits.values()) <= 6 * batch  # of no length
    assert statistics.median(found) <= 3.0, found


def test_runs_are_no_longer_than_they_need_be():
    scene = Scene(sentences, MIXED)
    scene.callers(64)
    assert sum(took > 0.055 for _, _, took in scene.runs) <= len(scene.runs) / 60  # of which larger ones are tried
    assert sum(size - rows for rows, size, _ in scene.runs) <= 0.01 * len(MIXED)


def test_a_flood_of_one_length_starves_no_other():
    scene = Scene(sentences, [128] * 1000 + [16])
    served = scene.callers(64)
    assert sum(served) == 1001
    assert scene.waits[16] <= scene.waits[128]
