"""Traces through the loop of production, as the benchmark of completion times prints them."""

import pytest

from benchmarks.baselines.muri import Submitted
from benchmarks.production import in_production
from fairlead.policy.gpu.stage_interleaving import StageProfile

ANY = StageProfile(iteration_s=0.5, stages_s=(0.1, 0.2, 0.1))


def job(uid: str, num_gpus: int, submitted_s: float, work_s: float) -> Submitted:
    return Submitted(
        uid=uid, model="bert", num_gpus=num_gpus, submitted_s=submitted_s, work_s=work_s, overhead_s=10.0, profile=ANY
    )


# All 64 GPUs are held for a day; then two wait that take them all, the longer before the shorter.
TRACE = (job("1", 64, 0.0, 86_400.0), job("2", 64, 10.0, 7200.0), job("3", 64, 20.0, 600.0))


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ("production", (86_410.0, 93_620.0, 94_230.0)),
        ("production-shortest", (86_410.0, 87_020.0, 94_230.0)),
        # Those that have given way pay their overhead again.
        ("production-preempting", (630.0, 7840.0, 94_250.0)),
    ],
)
def test_what_is_left_to_do_decides_who_is_done_first(policy: str, ends: tuple[float, float, float]) -> None:
    found = in_production(TRACE, policy)
    assert found.makespan_s == pytest.approx(ends[-1], abs=1.0)
    assert found.average_jct_s == pytest.approx((sum(ends) - 30.0) / 3, abs=1.0)
