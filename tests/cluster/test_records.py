"""Values of ours as they are stored: a status is one object, whichever parts it has in memory."""

import json
from dataclasses import fields

from fairlead.cluster.records import build, load, plain
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import LostPod, Phase, Status
from tests.builders import BECAUSE, changed, status

STORED = {
    "phase", "reason", "since", "attempt", "started_at", "finished_at", "next_phase", "next_reason", "program_failures",
    "disruptions", "last_failure", "failed_step", "retry_at", "refusals", "asked_at", "ask_again_at", "raised",
    "taken_by", "seats", "moved_at", "moved_cost_s", "nodes", "room_since", "ran_s", "active_s", "warning", "warned_at",
    "detail", "halted", "is_kept_small", "spot_there", "spot_since", "requests", "used", "paces", "assigned",
    "failed_on", "avoids", "probing", "lost", "preflights", "is_tested", "nodes_per_day",
}  # fmt: skip
"""The keys of a stored status, which other versions of Fairlead read and write."""


def test_a_status_is_stored_as_one_object_under_the_names_that_other_versions_know() -> None:
    assert set(plain(status())) == STORED


def test_a_stored_status_is_read_into_its_parts_and_what_it_lacks_is_the_default() -> None:
    reason = {"code": "Killed", "message": "why"}
    stored = {
        "phase": "Stopping", "reason": reason, "since": 1.5, "next_phase": "Failed", "next_reason": None,
        "last_failure": reason, "retry_at": None, "avoids": ["a"], "warning": None, "raised": 3,
        "of_a_later_version": 1, "lost": [{"index": 1, "times": 2, "in_a_row": 1, "steps": [4], "retry_at": 9.5}],
    }  # fmt: skip
    killed = Reason(code=Code.KILLED, message="why")
    lost = LostPod(index=1, times=2, in_a_row=1, steps=(4,), retry_at=9.5)
    before = Status(phase=Phase.STOPPING, reason=killed, since=1.5)
    assert load(Status, json.dumps(stored)) == changed(
        before, next_phase=Phase.FAILED, last_failure=killed, avoids=("a",), raised=3, lost=(lost,)
    )


def test_parts_of_which_nothing_is_stored_are_shared_by_all_statuses() -> None:
    stored = {"phase": "Pending", "reason": plain(BECAUSE), "since": 1.0}
    first, second = build(Status, stored), build(Status, stored)
    parts = [attribute.name for attribute in fields(Status) if attribute.metadata.get("flat")]
    assert len(parts) == 8
    assert all(getattr(first, name) is getattr(second, name) for name in parts)
