"""Members of a team see what decides on their runs, and nothing else of other teams."""

import base64
import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.manifests.team_views import NAME, pack_state, read_view, render_view
from fairlead.cluster.records import plain
from fairlead.errors import ClusterError
from fairlead.policy.queue.shared_view import OwnPart, is_of_another_team, seen_by, share
from fairlead.policy.start_outlook import outlook
from fairlead.specs.overlay import overlay
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Training
from fairlead.state.snapshot import Completed, Snapshot
from tests.builders import node
from tests.policy.test_scheduling import NOW, look, running, waiting

NODES = (node("n0", gpus=4, cpu_milli=64_000), node("n1", gpus=4, cpu_milli=64_000))
TEAMS = ("mine", "blue", "red")


def through_an_object(snapshot: Snapshot, team: str) -> Snapshot:
    """The snapshot that a member decides on, by the ConfigMap."""
    state, parts = share(snapshot)
    packed = pack_state(state)
    assert packed is not None
    content = render_view(team, packed, parts.get(team, OwnPart()))
    state, part = read_view(json.loads(json.dumps(content)))
    return seen_by(team, state, part, [each for each in snapshot.workloads if each.spec.team == team])


def hiding(snapshot: Snapshot) -> Snapshot:
    """The snapshot of an installation that shows no names of other teams' runs, as by default."""
    return replace(snapshot, rules=replace(snapshot.rules, shows_names=False))


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Runs of three teams, of which some hold GPUs and others wait."""
    held = []
    for name, count in (("n0", draw(st.integers(0, 4))), ("n1", draw(st.integers(0, 4)))):
        if count:
            length = draw(st.sampled_from((None, 7200.0, 1600.0)))
            team = draw(st.sampled_from(TEAMS))
            held.append(running(f"secret-{name}", name, range(count), team=team, max_duration_s=length))
    queued = [
        waiting(
            f"secret-{number}", draw(st.integers(1, 4)), age_s=draw(st.integers(1, 900)),
            team=draw(st.sampled_from(TEAMS)), priority=draw(st.sampled_from((0, 10))),
            max_duration_s=draw(st.sampled_from((None, 100.0, 5000.0))),
        )
        for number in range(draw(st.integers(0, 5)))
    ]  # fmt: skip
    teams = tuple(Team(name=name, guaranteed=Quota(gpu_milli=draw(st.sampled_from((0, 2000))))) for name in TEAMS[:2])
    return hiding(look(tuple(held), *queued, nodes=NODES, teams=teams))


@settings(deadline=None, max_examples=60)
@given(clusters())
def test_a_members_own_runs_start_when_an_administrator_sees_them_start(snapshot: Snapshot) -> None:
    def own(seen: Snapshot) -> list[tuple[str, float | None]]:
        return [(each.run.uid, each.start) for each in outlook(seen, NOW).queue if each.run.spec.team == "mine"]

    seen = through_an_object(snapshot, "mine")
    assert own(seen) == own(snapshot)
    assert len(seen.workloads) == len(snapshot.workloads)
    for each in seen.workloads:
        assert is_of_another_team(each) == (each.spec.team != "mine")


def test_nothing_is_shared_of_a_run_but_its_size_its_times_and_its_priority() -> None:
    secret = replace(
        waiting("secret-name", 1, team="secret-team"),
        spec=Training(
            name="secret-name", team="secret-team", run="secret command", env={"KEY": "secret value"},
            labels={"project": "secret-label"}, image="secret-image", workdir="secret-directory",
            kubernetes=overlay({"metadata": {"annotations": {"a": "secret-annotation"}}}),
        ),
    )  # fmt: skip
    held = (running("secret-run", "n0", range(4), team="secret-team"),)
    team = Team(name="secret-team", members=("secret@example.com",))
    done = (Completed(team="secret-team", name="secret-done", took_s=5.0),)
    snapshot = replace(hiding(look(held, secret, nodes=NODES, teams=(team,))), completed=done)
    state, parts = share(snapshot)
    assert "secret" not in json.dumps(plain(state))
    seen = through_an_object(snapshot, "mine")
    assert "secret" not in repr(seen).replace("secrets=()", "")  # the name of a key that runs have
    assert parts["secret-team"].completed == done


def test_names_are_shared_where_the_installation_shows_them() -> None:
    held = (running("train", "n0", range(4), team="blue"),)
    snapshot = look(held, waiting("tune", 1, team="red"), nodes=NODES, teams=(Team(name="blue"),))
    shown = replace(snapshot, rules=replace(snapshot.rules, shows_names=True))
    seen = through_an_object(shown, "mine")
    assert {(each.spec.team, each.spec.name) for each in seen.workloads} == {("blue", "train"), ("red", "tune")}
    assert [each.name for each in seen.teams] == ["blue"]
    assert not any(map(is_of_another_team, seen.workloads))


def test_what_is_newer_than_the_view_counts() -> None:
    old = waiting("old", 1, team="mine")
    snapshot = look((running("held", "n0", range(2), team="mine"),), old, nodes=NODES)
    state, parts = share(snapshot)
    new = waiting("new", 1, team="mine")
    seen = seen_by("mine", state, parts["mine"], [old, new])
    assert {each.uid for each in seen.workloads} == {"old", "new"}
    assert seen.pods == (), "the pods of a run that is gone hold nothing"


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200), st.text(max_size=60), st.sampled_from(("1", "2", "")))
def test_a_view_that_somebody_else_wrote_is_refused_as_unreadable(state: bytes, part: str, form: str) -> None:
    content = {"data": {"form": form, "part": part}, "binaryData": {"state": base64.b64encode(state).decode()}}
    with pytest.raises(ClusterError, match=NAME):
        read_view(content)


def test_a_view_that_unpacks_to_gigabytes_is_refused() -> None:
    bomb = base64.b64encode(zlib.compress(b"[" * 80_000_000, 9)).decode()
    with pytest.raises(ClusterError, match="bytes, or ends early"):
        read_view({"data": {"form": "1", "part": "{}"}, "binaryData": {"state": bomb}})
