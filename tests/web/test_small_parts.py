"""The parts of the page that need no cluster: text, curves, shapes, connections, and values kept for a while."""

import os
import sys
from pathlib import Path

import pytest

from fairlead.policy.kinds.steps import TaskPhase
from fairlead.policy.search.trials import TrialState
from fairlead.runtime import peer_users
from fairlead.runtime.peer_users import is_known_user
from fairlead.state.series import Point
from fairlead.state.snapshot import Phase, PodPhase
from fairlead.text.visible_text import one_line, visible
from fairlead.web import view
from fairlead.web.curves import HEIGHT, LEFT, WIDTH, curve
from fairlead.web.phases import shape_of
from fairlead.web.view import Paced

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1E14 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:A001 0100007F:1E14 01 00000000:00000000 00:00000000 00000000  4242        0 2 1 0 20 4 30 10 -1
"""


def points(*values: float, steps: bool = True) -> list[Point]:
    return [Point(at=100.0 + place, step=place if steps else None, value=value) for place, value in enumerate(values)]


def test_what_would_not_be_seen_is_spelled_out() -> None:
    assert visible("a\x1b[1m\u202eb\tc\nd é 漢 😀") == "a\\x1b[1m\\u{202e}b\tc\nd é 漢 😀"
    assert one_line("a\nb\r\tc") == "a b\\x0d c"


def test_every_state_has_a_shape_and_no_two_that_meet_share_one() -> None:
    for states in (Phase, PodPhase, TaskPhase, TrialState):
        shapes = [shape_of(state.value) for state in states]
        assert shape_of("nothing like it") not in shapes
    assert len({shape_of(phase.value).path for phase in Phase}) == len(Phase)


def test_a_curve_stays_within_its_frame_and_says_its_range() -> None:
    drawn = curve("loss", points(3.0, 1.0, 2.0))
    places = [tuple(map(float, place.split())) for place in drawn.path.removeprefix("M").split("L")]
    assert all(LEFT <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert places[0][1] < places[2][1] < places[1][1]  # up is more
    assert drawn.summary == "loss: 3 at first, 2 now, from 1 to 3"
    assert (drawn.first, drawn.last, drawn.newest) == ("0", "step 2", "2")


@pytest.mark.parametrize("values", [(), (float("nan"),), (float("inf"), float("-inf"))])
def test_a_curve_without_a_finite_value_says_so(values: tuple[float, ...]) -> None:
    assert curve("loss", points(*values)).summary == "no finite value"


def test_a_level_curve_and_one_over_time_are_drawn() -> None:
    assert curve("loss", points(0.0, 0.0)).path.startswith("M")
    assert curve("loss", points(1.0, 2.0, steps=False)).last == "1 s"
    assert curve("loss", points(5.0)).path.endswith("h1")


def test_a_long_curve_keeps_its_extremes() -> None:
    values = [0.5] * 5000
    values[2345] = 9.0
    drawn = curve("loss", points(*values))
    assert "from 0.5 to 9" in drawn.summary
    assert drawn.path.count("L") < 250


def test_a_connection_is_known_by_the_user_at_its_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    table.write_text(TCP)
    monkeypatch.setattr(peer_users, "_holder_by_netlink", lambda *ends: None)
    monkeypatch.setattr(peer_users, "_TABLES", (tmp_path / "missing", table))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "byteorder", "little")
    ends = ("127.0.0.1", 0xA001), ("127.0.0.1", 0x1E14)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert not is_known_user(*ends)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert is_known_user(*ends)
    assert is_known_user(("127.0.0.1", 1), ("127.0.0.1", 0x1E14))  # not told by this machine


def test_the_port_of_a_connection_of_ours_does_not_let_another_address_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "tcp"
    ours, theirs = "0100007F:A001 0100007F:1E14", "0200007F:A001 0100007F:1E14"
    rest = "01 00000000:00000000 00:00000000 00000000"
    table.write_text(f"{TCP.splitlines()[0]}\n 0: {ours} {rest} 1000 0 1\n 1: {theirs} {rest} 4242 0 2\n")
    monkeypatch.setattr(peer_users, "_holder_by_netlink", lambda *ends: None)
    monkeypatch.setattr(peer_users, "_TABLES", (table,))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "byteorder", "little")
    own = ("127.0.0.1", 0x1E14)
    assert is_known_user(("127.0.0.1", 0xA001), own)
    assert not is_known_user(("127.0.0.2", 0xA001), own)


def test_a_value_that_took_long_is_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(view, "monotonic", lambda: clock[0])
    found, paced = list[float](), Paced()

    def find() -> int:
        clock[0] += 0.5
        found.append(clock[0])
        return len(found)

    assert paced.value("key", find) == 1
    clock[0] += 9.9
    assert paced.value("key", find) == 1
    assert paced.value("other", find) == 2
    clock[0] += 0.2
    assert paced.value("key", find) == 3
