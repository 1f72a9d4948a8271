"""What ``benchmarks.step_time`` makes of steps that were measured."""

import pytest

from benchmarks.step_time import corrected


def test_measured_steps_of_a_shape_correct_its_estimate() -> None:
    assert corrected(100.0, []) == 100.0
    assert corrected(100.0, [(120.0, 100.0)] * 5) == pytest.approx(120.0, rel=0.01)
