"""Retries, rates and joined messages of a destination, on a virtual clock."""

import json

from fairlead.control.notifications.queue import (
    MOST_MESSAGES,
    MOST_TRIES,
    MOST_WAITING,
    WINDOW_S,
    Outbox,
    outboxes_of,
    plain_outboxes,
)
from fairlead.control.notifications.topics import RunNotice, Topic


def notice(number: int) -> RunNotice:
    return RunNotice(
        id=str(number), at=0.0, topic=Topic.FAILED, type="Failed", run=f"r{number}", team="default", kind="Training",
        uid="u", message="it failed", labels=(("a", "b"),),
    )  # fmt: skip


def test_a_message_is_tried_again_later_and_later_and_then_given_up() -> None:
    box, now, tries = Outbox(), 0.0, []
    box.add(notice(1))
    box.add(notice(2))
    while True:
        if due := box.due(now):
            assert [entry.id for entry in due] == ["1"]
            tries.append(now)
            if box.refused("it answers 500", now):
                break
        now += 1
    assert len(tries) == MOST_TRIES
    assert tries[:4] == [0, 5, 15, 35]
    assert now < 3 * 3600
    assert (box.num_given_up, [entry.id for entry in box.due(now)]) == (1, ["2"])


def test_a_flood_is_a_bounded_number_of_messages_and_loses_no_notice() -> None:
    box, now, sizes = Outbox(), 0.0, []
    for number in range(100):
        box.add(notice(number))
    for _ in range(int(WINDOW_S)):
        if due := box.due(now):
            sizes.append(len(due))
            box.accepted(now)
        now += 1
    assert sizes == [*[1] * (MOST_MESSAGES - 1), 100 - (MOST_MESSAGES - 1)]
    box.add(notice(100))
    assert box.due(now)


def test_notices_above_the_limit_are_counted() -> None:
    box = Outbox()
    for number in range(MOST_WAITING + 5):
        box.add(notice(number))
    assert (len(box.waiting), box.omitted, box.due(0.0)[0].id) == (MOST_WAITING, 5, "5")
    box.accepted(0.0)
    assert box.omitted == 0


def test_a_clock_that_was_set_back_holds_up_nothing() -> None:
    box = Outbox()
    box.add(notice(1))
    box.refused("no answer", 1e6)
    assert box.due(0.0)


def test_an_outbox_survives_as_json() -> None:
    box = Outbox()
    box.add(notice(1))
    box.due(0.0)
    box.refused("no answer", 0.0)
    assert outboxes_of(json.loads(json.dumps(plain_outboxes({"me": box})))) == {"me": box}
