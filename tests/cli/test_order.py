"""Output and events of runs that are followed: in their order, nothing lost and nothing twice."""

import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import follow
from fairlead.cluster.output import LogQuery, Watermark
from fairlead.cluster.port import EventRecord, LogLine
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Workload
from tests.builders import status, training
from tests.cli.conftest import Call
from tests.waiting import until


def an_event(id_: int, at: float) -> EventRecord:
    reason = Reason(code=Code.REPORTED, message="")
    return EventRecord(id=id_, at=at, workload_uid="u", run="r", type=f"event {id_}", reason=reason)


def a_line(at: float) -> LogLine:
    return LogLine(at=at, attempt=0, rank=0, stream="o", text=f"line {at:g}")


class Recorded:
    """A cluster whose output comes in steps that a test takes: lines, or the time up to which all was read."""

    def __init__(self) -> None:
        self.told: list[EventRecord] = []
        self.steps: list[LogLine | float] = []
        self.is_over = False

    def another(self) -> "Recorded":
        return self

    def close(self) -> None:
        """Holds nothing."""

    def nudge(self) -> None:
        """Nobody is to be woken."""

    def events(self, uid: str, *, after: int) -> tuple[EventRecord, ...]:
        return tuple(event for event in self.told if event.id > after)

    def logs(self, uid: str, query: LogQuery, *, follow: bool, watermark: Watermark) -> Iterator[LogLine]:
        while not self.is_over or self.steps:
            if not self.steps:
                time.sleep(0.001)
                continue
            step = self.steps[0]
            if isinstance(step, float):
                watermark.reached = step
            else:
                yield step
            self.steps.pop(0)


class Followed:
    """A run that is followed, one look at a time."""

    def __init__(self) -> None:
        self.cluster = Recorded()
        self._watch = follow._Watch(self.cluster, run())  # type: ignore[arg-type] # what it needs of one

    def look(self, *steps: LogLine | float, late: Sequence[LogLine] = (), is_over: bool = False) -> list[str]:
        """What is shown once these have been read; late ones after events were asked for."""
        self._read(steps)
        self.cluster.is_over = is_over
        self._watch.see()
        self._read(late)
        return [each.text if isinstance(each, LogLine) else each.type for each in self._watch.news(is_over=is_over)]

    def _read(self, steps: Sequence[LogLine | float]) -> None:
        self.cluster.steps.extend(steps)
        until(lambda: not self.cluster.steps, "reader of the output", timeout_s=20.0, every_s=0.001)


def run() -> Workload:
    return Workload(uid="u", spec=training(), intent=Intent.RUN, status=status(), version=1, created_at=0.0)


@pytest.fixture
def followed() -> Iterator[Followed]:
    made = Followed()
    yield made
    made.cluster.is_over = True


def test_an_event_waits_for_the_output_before_it(followed: Followed) -> None:
    followed.look(1.0)
    followed.cluster.told = [an_event(1, 20.0)]
    assert followed.look(a_line(10.0), a_line(30.0)) == ["line 10"]
    # The other pod's reader comes later with what was written before.
    assert followed.look(a_line(15.0), a_line(35.0)) == ["line 15"]
    assert followed.look(time.time() + 1) == ["event 1", "line 30", "line 35"]
    assert followed.look(a_line(40.0)) == ["line 40"]


def test_a_history_is_shown_in_the_order_of_time(followed: Followed) -> None:
    followed.cluster.told = [an_event(1, 5.0), an_event(2, 15.0), an_event(3, 25.0)]
    assert followed.look(a_line(10.0), a_line(20.0), a_line(22.0)) == [
        "event 1",
        "line 10",
        "event 2",
        "line 20",
        "line 22",
    ]
    assert followed.look(a_line(24.0), is_over=True) == ["line 24", "event 3"]


def test_output_that_came_after_events_were_asked_for_waits_for_the_event_before_it(followed: Followed) -> None:
    followed.look(1.0)
    assert followed.look(a_line(10.0), late=[a_line(20.0)]) == ["line 10"]
    followed.cluster.told = [an_event(1, 15.0)]
    assert followed.look(time.time() + 1) == ["event 1", "line 20"]


def test_an_event_waits_for_output_before_it_that_is_too_much_for_one_look(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.look(1.0)
    monkeypatch.setattr(follow, "MOST_LINES", 2)
    followed.cluster.told = [an_event(1, 15.0)]
    assert followed.look(a_line(10.0), a_line(11.0), a_line(12.0), time.time() + 1) == ["line 10", "line 11"]
    assert followed.look() == ["line 12", "event 1"]


def test_the_last_event_of_a_run_comes_last_although_clocks_differ(followed: Followed) -> None:
    followed.look(1.0)
    followed.cluster.told = [an_event(1, 5.0), an_event(2, 15.0)]
    assert followed.look(a_line(3.0), a_line(16.0), is_over=True) == ["line 3", "event 1", "line 16", "event 2"]


def test_an_event_is_shown_in_time_although_output_cannot_be_read(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.look(1.0)
    monkeypatch.setattr(follow, "MOST_HELD_S", -1.0)
    followed.cluster.told = [an_event(1, 5.0)]
    assert followed.look(a_line(9.0)) == ["event 1", "line 9"]


@pytest.mark.parametrize("how", ["run", "attach"])
def test_the_failure_comes_after_all_output_once(call: Call, how: str) -> None:
    Path("fails.py").write_text("for n in range(3000): print(n)\nraise SystemExit(3)\n")
    Path("fails.yaml").write_text(
        "name: fails\nrun: python fails.py\nranks_per_node: 2\nretry: {program: 1, backoff: 0s}\n"
    )
    if how == "run":
        ended = call("run", "fails.yaml", "--json")
    else:
        call("run", "-d", "fails.yaml")
        ended = call("attach", "fails", "--json")
    told: list[dict[str, Any]] = [json.loads(line) for line in ended.out.splitlines()]
    told = [each for each in told if each["type"] in ("log", "event", "end")]
    for attempt in range(2):
        for rank in range(2):
            texts = [each["text"] for each in told if (each.get("attempt"), each.get("rank")) == (attempt, rank)]
            assert texts == sorted(set(texts), key=int)
    logs = [(n, each["attempt"]) for n, each in enumerate(told) if each["type"] == "log"]
    places = {attempt: [n for n, of in logs if of == attempt] for attempt in (0, 1)}
    (restarting,) = (n for n, each in enumerate(told) if each.get("event") == "Restarting")
    # The other rank may still be printing when the first one has failed.
    first = re.search(r"rank (\d) of 2", told[restarting]["reason"]["message"])
    assert first is not None, told[restarting]
    caused = [n for n, of in logs if of == 0 and told[n]["rank"] == int(first[1])]
    assert len(caused) == 3000
    assert caused[-1] < restarting < places[1][0]
    assert [each.get("event", each["type"]) for each in told[-2:]] == ["Failed", "end"]
    assert places[1][-1] < len(told) - 2
