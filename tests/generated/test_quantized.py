"""A share of the random networks of 8-bit integers; `make quantization` runs 1,000."""

import pytest

from tests.generated.quantized import check, onnxruntime_answer

SHARE, ALL = 24, 1000


def findings(numbers):
    return [(number, *found) for number in numbers for found in check(number, onnxruntime_answer)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("start", range(0, SHARE, 8))
def test_networks(start):
    assert findings(range(start, start + 8)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("start", range(SHARE, ALL, 61))
def test_many_networks(start):
    assert findings(range(start, start + 61)) == []
