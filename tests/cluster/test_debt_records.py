"""Debts of teams written and read back: by the supervisor's file, and from text that somebody else wrote."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.debt_records import MOST_BYTES, MOST_TEAMS, debts_of, plain_debts
from fairlead.cluster.kubernetes.lease_contents import debts_on
from fairlead.cluster.kubernetes.names import DEBTS
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.debt_file import DebtWriter, read_debts
from fairlead.policy.queue.team_debts import MOST_S, DebtRecord, Reserved
from fairlead.state.snapshot import Phase
from tests.builders import training

RECORD = DebtRecord(at=1000.0, debts_s={"a": 300.0, "b": -300.0}, reserved={"uid": Reserved(team="a", debt_s=50.0)})
GOOD: dict[str, Any] = {"at": 1.0, "debts": {}, "reserved": {}}


def test_a_record_is_read_as_it_was_written() -> None:
    assert debts_of(json.loads(json.dumps(plain_debts(RECORD)))) == RECORD


def test_the_largest_debts_of_many_teams_fit_an_annotation() -> None:
    many = {f"{number:0250d}": float(number) for number in range(3 * MOST_TEAMS)}
    reserved = {f"{number:036d}": Reserved(team="a" * 63, debt_s=1.0) for number in range(3 * MOST_TEAMS)}
    plain = plain_debts(DebtRecord(at=1.0, debts_s=many, reserved=reserved))
    assert min(plain["debts"].values()) == 2 * MOST_TEAMS
    text = json.dumps(plain, separators=(",", ":"))
    assert len(text) <= 2 * MOST_BYTES
    assert debts_of(plain).debts_s.keys() == plain["debts"].keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"at": None},
        {"at": True},
        {"at": 10**400},
        {"debts": []},
        {"debts": {"a": "1"}},
        {"debts": {"": 1.0}},
        {"debts": {"a" * 300: 1.0}},
        {"debts": {str(number): 1.0 for number in range(MOST_TEAMS + 1)}},
        {"reserved": {"uid": {"team": "a"}}},
        {"reserved": {"uid": ["a"]}},
        {"reserved": {"uid": [3, 1.0]}},
        {"reserved": None},
    ],
)
def test_content_of_somebody_else_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        debts_of({**GOOD, **changes})


def test_no_debt_is_read_as_more_than_the_largest() -> None:
    found = debts_of({**GOOD, "debts": {"a": 1e300, "b": -1e300}, "reserved": {"uid": ["a", -5.0]}})
    assert found.debts_s == {"a": MOST_S, "b": -MOST_S}
    assert found.reserved["uid"].debt_s == 0.0


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"at": NaN, "debts": {}, "reserved": {}}', "x" * 200_000])
def test_unreadable_debts_begin_at_nothing_and_are_logged(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert debts_on({DEBTS: text}) == DebtRecord()
    (tmp_path / "debts.json").write_text(text)
    assert read_debts(tmp_path / "debts.json") == DebtRecord()
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]


def test_commands_of_one_machine_see_the_debts_that_its_supervisor_wrote(tmp_path: Path) -> None:
    with closing(LocalCluster.open(tmp_path)) as cluster:
        cluster.submit(training("waits"))
        assert cluster.snapshot().debts == {}
        writer = DebtWriter(cluster.home.debts, DebtRecord())
        writer.write(RECORD)
        assert cluster.snapshot().debts == {"a": 250.0, "b": -300.0}
        assert cluster.unfinished()[0].status.phase is Phase.PENDING


def test_debts_are_written_every_ten_seconds_and_at_the_end(tmp_path: Path) -> None:
    writer = DebtWriter(tmp_path / "debts.json", DebtRecord())
    writer.write(DebtRecord(at=5.0))
    assert not (tmp_path / "debts.json").exists()
    writer.write(RECORD)
    later = DebtRecord(at=2000.0, debts_s={"a": 10.0})
    writer.write(later)
    assert read_debts(tmp_path / "debts.json") == RECORD
    writer.write(later, at_once=True)
    assert read_debts(tmp_path / "debts.json") == later


def test_a_disk_that_refuses_them_is_logged_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = DebtWriter(tmp_path / "gone" / "debts.json", DebtRecord())
    writer.write(RECORD)
    assert "debts of teams are not written" in caplog.text
