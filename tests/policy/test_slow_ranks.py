"""The rule that names the rank which computes more slowly than its peers."""

import random
from collections.abc import Iterator

from fairlead.policy.health.slow_ranks import SlowRank, SlowRankDetector


def steps(
    num_data: int, num_stages: int, *, slow: int | None, since: int, factor: float = 1.1
) -> Iterator[list[float]]:
    """Yield own times whose data differ by 12 % between data ranks, alike on all their stages."""
    rng = random.Random(1)
    for step in range(2_000):
        data = [rng.gauss(0, 0.12) for _ in range(num_data)]
        own = [
            (1 + 0.5 * stage) * 2.718 ** (data[rank] * (1.4 if stage else 0.7) + rng.gauss(0, 0.008))
            for rank in range(num_data)
            for stage in range(num_stages)
        ]
        if slow is not None and step >= since:
            own[slow] *= factor
        yield own


def test_a_slow_rank_is_named_with_its_factor_though_data_differ_more() -> None:
    detector = SlowRankDetector(6, 2)
    verdicts = ((step, detector.observe(own)) for step, own in enumerate(steps(6, 2, slow=7, since=100)))
    step, named = next((step, named) for step, named in verdicts if named is not None)
    assert named.rank == 7
    assert 100 <= step < 108
    assert abs(named.since - 100) <= 2
    assert 1.05 < named.factor < 1.16


def test_ranks_with_unequal_data_and_stages_cause_no_alarm() -> None:
    detector = SlowRankDetector(4, 2)
    assert not any(detector.observe(own) for own in steps(4, 2, slow=None, since=0))


def test_a_pause_of_two_steps_is_no_slow_rank_and_a_rank_that_recovers_is_named_no_more() -> None:
    detector, rng = SlowRankDetector(4), random.Random(2)
    named: list[SlowRank | None] = []
    for step in range(300):
        own = [rng.gauss(1, 0.01) for _ in range(4)]
        if step in (50, 51) or 100 <= step < 150:
            own[2] *= 1.5
        named.append(detector.observe(own))
    assert not any(named[:100])
    assert all(slow is not None and slow.rank == 2 for slow in named[105:150])
    assert not any(named[200:])


def test_one_rank_alone_has_no_peers() -> None:
    detector = SlowRankDetector(1, 4)
    assert detector.observe([1.0, 9.0, 1.0, 1.0]) is None
