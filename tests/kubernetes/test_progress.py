"""How often a run is asked what it says of itself."""

import pytest

from fairlead.cluster.kubernetes.api.objects import Amounts, PodObject
from fairlead.cluster.kubernetes.operating.progress import EVERY_S, MOST_S, _Turn

POD = PodObject(key="t/a", version=1, uid="u", phase="Running", node="n", requests=Amounts(), created_at=0.0)


@pytest.mark.parametrize(("silent_s", "every_s"), [(0.0, EVERY_S), (20.0, EVERY_S), (100.0, 25.0), (86_400.0, MOST_S)])
def test_a_run_is_asked_the_less_often_the_longer_it_said_nothing_new(silent_s: float, every_s: float) -> None:
    turn = _Turn(pod=POD, most_s=MOST_S, news_at=1000.0, asked_at=1000.0)
    assert turn.every_s(1000.0 + silent_s) == every_s


def test_a_run_with_a_stall_timeout_is_asked_within_it() -> None:
    turn = _Turn(pod=POD, most_s=15.0, news_at=0.0, asked_at=0.0)
    assert turn.every_s(3600.0) == 15.0
