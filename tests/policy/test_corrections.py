"""Steps that were measured correct the estimates of their layer shape, and no others."""

import pytest

from fairlead.policy.strategy.corrections import MeasuredStep, corrected, factor, factors, shape_of
from fairlead.policy.strategy.resolution import hardware_of, transformer_of
from fairlead.policy.strategy.search import assess
from fairlead.policy.strategy.split import Split
from fairlead.policy.strategy.step_time import StepTime
from tests.policy.test_resolution import LLAMA_8B, training


def step(measured_s: float, **changes: object) -> MeasuredStep:
    shape = shape_of(transformer_of(LLAMA_8B, None), Split(data=8, micro_batch=2, micro_batches=4))
    known: dict[str, object] = {
        "run": "u", "split": "", "gpu": "H100", "hidden": shape.hidden, "heads": shape.heads,
        "sequence": shape.sequence, "tensor": 1, "micro_batch": 2, "measured_s": measured_s, "estimated_s": 1.0,
        "at": 0.0,
    }  # fmt: skip
    return MeasuredStep(**{**known, **changes})  # type: ignore[arg-type]


def test_measured_steps_of_a_shape_correct_its_estimate() -> None:
    assert factor([]) == 1.0
    assert factor([(120.0, 100.0)] * 5) == pytest.approx(1.2, rel=0.01)
    assert 1.1 < factor([(120.0, 100.0)]) < 1.2


def test_only_steps_of_the_same_gpu_and_shape_count() -> None:
    found = factors([step(1.5), step(1.5, gpu="A100"), step(3.0, micro_batch=4)], "H100")
    assert {shape.micro_batch: round(by, 2) for shape, by in found.items()} == {2: 1.45, 4: 2.71}


def test_a_step_that_waited_for_something_else_corrects_nothing() -> None:
    assert factors([step(50.0)], "H100") == {}


def test_every_part_of_a_step_is_corrected_alike() -> None:
    assert corrected(StepTime(layers=1.0, bubble=2.0, data=3.0, optimizer=4.0), 2.0).total == 20.0


def test_the_next_plan_goes_by_what_was_measured() -> None:
    model, seen = transformer_of(LLAMA_8B, None), [step(2.0)] * 20
    for micro, by in ((2, 2.0), (4, 1.0)):
        split = Split(data=8, zero=3, micro_batch=micro, micro_batches=16 // micro)
        before = assess(model, split, hardware_of(training())).time.total
        after = assess(model, split, hardware_of(training(), steps=seen)).time.total
        assert after / before == pytest.approx(by, rel=0.01)
