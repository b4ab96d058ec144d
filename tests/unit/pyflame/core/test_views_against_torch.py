"""Views and in-place operations do what torch does: random programs side by side."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402

from tests.unit.pyflame.core.inplace_programs import programs, run  # noqa: E402


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_programs(program):
    run(program)


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_many_programs(program):
    run(program)
