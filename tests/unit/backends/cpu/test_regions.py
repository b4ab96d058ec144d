"""Memory for weights: aligned, apart from each other, and given back."""

import gc
import mmap
import resource

import numpy as np
import pytest

from pyflame_rt.backends.cpu.memory import weight_regions as regions
from pyflame_rt.backends.cpu.memory.constants import resident
from pyflame_rt.graph.pages import forget_pages, map_file
from tests.unit.resting import at_rest


@pytest.mark.parametrize("size", [1, 100, regions.SMALL, regions.SMALL + 3, 5 << 20, regions.REGION // 4 + 1])
def test_arrays_are_aligned_and_apart(size):
    arrays = [regions.weights_empty(size) for _ in range(3)]
    for i, array in enumerate(arrays):
        assert array.shape == (size,)
        assert array.ctypes.data % 64 == 0
        array[:] = i
    assert [int(a[0]) for a in arrays] == [int(a[-1]) for a in arrays] == [0, 1, 2]


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no large pages")
def test_it_is_not_taken_for_a_mapped_file():
    array = regions.weights_empty(1 << 20)
    array[:] = 5
    forget_pages(array)
    assert (array == 5).all()


def test_regions_go_with_their_arrays():
    def used():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    kept = [regions.weights_empty(8 << 20) for _ in range(3)]
    at_rest()  # else others take memory meanwhile
    before = used()
    for _ in range(4):
        arrays = [regions.weights_empty(15 << 20) for _ in range(6)]
        for array in arrays:
            array[:] = 1
        del arrays, array
        gc.collect()
    at_rest()
    assert used() - before <= regions.REGION + (16 << 20)
    assert all(np.shares_memory(a, b) == (a is b) for a in kept for b in kept)


def test_weights_of_a_mapped_file_are_copied_once(tmp_path):
    path = tmp_path / "weights"
    values = np.arange(1 << 16, dtype=np.float32)
    path.write_bytes(values.tobytes())
    array = np.frombuffer(map_file(path), np.float32)
    first, second = resident(array), resident(array[:])
    assert first is second
    assert not np.shares_memory(first, array)
    assert np.array_equal(first, values)
    assert np.array_equal(array, values)
    assert resident(values) is values
