"""Memory of refused and unready engine objects, with an injected clock."""

import pytest

from fairlead.cluster.kubernetes.operator.engines.engine_problems import ASK_EVERY_S, PAUSE_S, EngineProblems


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def problems(clock: Clock) -> EngineProblems:
    return EngineProblems(now=clock)


def test_a_refused_content_is_paused_and_another_content_is_not(problems: EngineProblems, clock: Clock) -> None:
    problems.answered("a", "quota exceeded", "v1")
    assert (problems.is_paused("a", "v1"), problems.is_paused("a", "v2"), problems.is_paused("b", "v1")) == (
        True, False, False,
    )  # fmt: skip
    clock.now += PAUSE_S
    assert not problems.is_paused("a", "v1")
    refusal = problems.refusal("a")
    assert refusal is not None
    assert (refusal.content, refusal.problem) == ("v1", "quota exceeded")


def test_an_accepted_request_clears_the_refusal(problems: EngineProblems) -> None:
    problems.answered("a", "quota exceeded")
    problems.answered("a", None)
    assert problems.refusal("a") is None
    assert not problems.is_paused("a")


def test_a_finding_counts_for_its_part_alone(problems: EngineProblems) -> None:
    assert problems.finding("a", "r1") == ""
    assert problems.find("a", "no node has room", "r1")
    assert not problems.find("a", "no node has room", "r1")
    assert (problems.finding("a", "r1"), problems.finding("a", "r2")) == ("no node has room", "")
    problems.clear("a")
    assert problems.finding("a", "r1") == ""


def test_a_first_finding_without_a_reason_is_no_change(problems: EngineProblems) -> None:
    assert not problems.find("a", "")
    assert problems.find("a", "its Deployment has no pod that is ready")


def test_reasons_are_read_at_intervals(problems: EngineProblems, clock: Clock) -> None:
    assert (problems.is_due("a"), problems.is_due("a"), problems.is_due("b")) == (True, False, True)
    clock.now += ASK_EVERY_S
    assert problems.is_due("a")


def test_what_no_pass_shows_is_forgotten(problems: EngineProblems) -> None:
    for uid in ("a", "b"):
        problems.answered(uid, "quota exceeded")
        problems.find(uid, "no node has room")
        problems.is_due(uid)
    problems.keep({"b"})
    assert problems.refusal("a") is None
    assert problems.finding("a") == ""
    assert (problems.is_due("a"), problems.is_due("b")) == (True, False)
    assert problems.is_paused("b")
    assert problems.finding("b") == "no node has room"
