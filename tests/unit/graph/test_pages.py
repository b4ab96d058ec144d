"""Memory in files."""

import numpy as np
import pytest

from pyflame_rt.graph.errors import MemoryLimitError
from pyflame_rt.graph.pages import file_memory


def test_memory_in_a_file_leaves_no_name(tmp_path):
    memory = file_memory(10_000, tmp_path)
    memory[:] = 7
    assert memory.sum() == 70_000
    assert memory.dtype == np.uint8
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_is_told(tmp_path):
    with pytest.raises(MemoryLimitError, match=r"10000 bytes of weights do not fit on the disk of .*gone"):
        file_memory(10_000, tmp_path / "gone")
