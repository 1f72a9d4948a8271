"""A federation has a server and a client at each site, tells of rounds and sites, and ends with its server."""

from dataclasses import replace

import pytest

from fairlead.cluster.records import build, plain
from fairlead.policy.kinds.federation import KIND, FederationDetail, client_intent, client_run, judge, next_at
from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.kinds.privacy import epsilon_spent, noise_plan
from fairlead.policy.kinds.record import Family
from fairlead.runtime.federation.settings import FederationSettings, read_settings
from fairlead.specs.aggregation import Privacy
from fairlead.specs.federation import CLIENT_OF, SERVER, Federation, Site
from fairlead.specs.training import Training
from fairlead.state.plan import child_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.site_clients import ClientReport
from fairlead.state.snapshot import AfterStop, AnyWorkload, Intent, Phase, Progress, Snapshot, Status, Workload

REASON = Reason(code=Code.REPORTED, message="its program failed")
SPEC = Federation(
    name="digits",
    app="app",
    sites={"north": Site(data="/data/north"), "south": Site(), "west": Site()},
    rounds=50,
    min_sites=2,
    deadline_s=60.0,
)
BEGUN = FederationDetail(submitted=True)
NOON = 12 * 3600.0


def a_federation(
    detail: FederationDetail | None = None, spec: Federation = SPEC, phase: Phase = Phase.RUNNING
) -> Workload[Federation]:
    status = Status(phase=phase, reason=REASON, since=0.0, detail=detail)
    return Workload(uid="f", spec=spec, intent=Intent.RUN, status=status, version=3, created_at=0.0)


def a_child(name: str, phase: Phase = Phase.RUNNING, step: int | None = None, loss: float | None = None) -> AnyWorkload:
    return Workload(
        uid=name,
        spec=Training(name=f"digits-{name}", run="x"),
        intent=Intent.RUN,
        status=Status(phase=phase, reason=REASON, since=0.0),
        version=1,
        created_at=0.0,
        progress=None if step is None else Progress(step=step, loss=loss),
        parent="f",
    )


def a_family(**others: AnyWorkload) -> Family:
    children = {SERVER: a_child(SERVER, step=4, loss=0.5), **{name: a_child(name) for name in SPEC.sites}}
    return Family(children={**children, **others})


def test_its_server_and_sites_are_submitted_together_with_what_their_programs_read() -> None:
    change = judge(a_federation(phase=Phase.PENDING), Family(children={}), 1.0)
    assert change is not None
    assert [order.spec.name for order in change.submit] == [
        "digits-server", "digits-north", "digits-south", "digits-west",
    ]  # fmt: skip
    run = change.submit[1].spec
    assert isinstance(run, Training)
    assert run.env["FEDERATION_SITE"] == "north"
    assert read_settings(run.env) == FederationSettings(
        name="digits", server_uid=child_uid("f", SERVER), sites=("north", "south", "west"), site="north",
        data="/data/north", app="app", rounds=50, min_sites=2, deadline_s=60.0,
    )  # fmt: skip
    assert change.status is not None
    assert change.status.reason.message == "its server and 3 sites start"


def test_rounds_and_losses_of_sites_are_told_in_its_reason_and_a_round_in_an_event() -> None:
    change = judge(a_federation(BEGUN), a_family(north=a_child("north", step=5, loss=0.25)), 1.0)
    assert change is not None
    assert change.status is not None
    assert (
        change.status.reason.message == "4 of 50 rounds done, loss 0.5; loss by site: north 0.25; all 3 sites take part"
    )
    assert change.event is not None
    assert (change.event.type, change.event.reason.message) == ("RoundDone", "4 of 50 rounds done, loss 0.5")
    after = a_federation(FederationDetail(submitted=True, round=4, loss=0.5))
    assert KIND.progress(after) == "4/50"
    unchanged = replace(after, status=change.status)
    assert judge(unchanged, a_family(north=a_child("north", step=5, loss=0.25)), 2.0) is None


@pytest.mark.parametrize(
    ("others", "event"),
    [
        (("south",), "round 5 goes on without it: south is Pending"),
        (("south", "west"), "round 5 waits, as it needs 2 sites: south is Pending, west is Pending"),
    ],
)
def test_sites_that_are_away_are_told_with_what_follows(others: tuple[str, ...], event: str) -> None:
    family = a_family(**{name: a_child(name, Phase.PENDING) for name in others})
    before = FederationDetail(submitted=True, round=4, loss=0.5)
    change = judge(a_federation(before), family, 1.0)
    assert change is not None
    assert change.event is not None
    assert (change.event.type, change.event.reason.message) == ("SiteLeft", event)


def test_a_site_that_returns_is_told() -> None:
    before = FederationDetail(submitted=True, round=4, loss=0.5, away=("south",))
    change = judge(a_federation(before), a_family(), 1.0)
    assert change is not None
    assert change.event is not None
    assert change.event.reason.message == "south joins round 5 or the next one"


ELSEWHERE = replace(
    SPEC, sites={**SPEC.sites, "west": Site(home="/west", window="22:00-06:00")}, address="localhost:9000"
)
TRAINS = ClientReport(phase=Phase.RUNNING, loss=0.125, attempt=0)


def seen_from_afar(west: ClientReport | None) -> Family:
    family = a_family()
    children = {name: child for name, child in family.children.items() if name != "west"}
    return replace(family, children=children, sites={"west": west})


def test_the_client_of_a_site_in_another_cluster_is_a_run_of_that_cluster() -> None:
    change = judge(a_federation(spec=ELSEWHERE, phase=Phase.PENDING), Family(children={}), 1.0)
    assert change is not None
    assert [order.spec.name for order in change.submit] == ["digits-server", "digits-north", "digits-south"]
    run = client_run(a_federation(spec=ELSEWHERE), "west", ("localhost:9000", "a certificate"))
    assert (run.name, run.workdir, run.labels[CLIENT_OF]) == ("digits-west", "/west", "f")
    settings = read_settings(run.env)
    assert (settings.site, settings.superlink) == ("west", ("localhost:9000", "a certificate"))


@pytest.mark.parametrize(
    ("report", "clause"),
    [
        (TRAINS, "loss by site: west 0.125; all 3 sites take part"),
        (None, "2 of 3 sites take part, west is not visited yet"),
        (ClientReport(), "2 of 3 sites take part, west is without a client"),
        (
            replace(TRAINS, trouble="no route to host"),
            "loss by site: west 0.125; 2 of 3 sites take part, west is away (no route to host)",
        ),
        (
            replace(TRAINS, loss=None, message="it does not reach its server at a:1: timed out"),
            "2 of 3 sites take part, west is Running (it does not reach its server at a:1: timed out)",
        ),
    ],
)
def test_a_site_in_another_cluster_is_told_with_what_keeps_it_away(report: ClientReport | None, clause: str) -> None:
    change = judge(a_federation(BEGUN, ELSEWHERE), seen_from_afar(report), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.reason.message == f"4 of 50 rounds done, loss 0.5; {clause}"


def test_a_client_that_has_failed_there_ends_a_federation_only_if_too_few_sites_are_left() -> None:
    failed = ClientReport(phase=Phase.FAILED, message="no memory", settled=Intent.STOP)
    change = judge(a_federation(BEGUN, ELSEWHERE), seen_from_afar(failed), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.phase is Phase.RUNNING
    change = judge(a_federation(BEGUN, replace(ELSEWHERE, min_sites=3)), seen_from_afar(failed), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.reason.message == ("2 sites left, and a round needs 3; west is Failed (no memory)")


def test_a_stop_waits_for_sites_of_other_clusters_and_says_which_client_stays() -> None:
    federation = replace(a_federation(BEGUN, ELSEWHERE), intent=Intent.STOP)

    def judged(report: ClientReport, now: float, before: Workload[Federation]) -> Workload[Federation] | None:
        seen = Snapshot(nodes=(), workloads=(), pods=(), parents=(before,), sites={"f": {"west": report}})
        (change,) = judge_parents(seen, now) or (None,)
        return None if change is None or change.status is None else replace(before, status=change.status)

    stopping = judged(TRAINS, 1.0, federation)
    assert stopping is not None
    assert stopping.status.reason.message == "stopped on request; waiting for its clients at 1 site: west"
    suspended = replace(TRAINS, phase=Phase.SUSPENDED, settled=Intent.SUSPEND)
    assert judged(suspended, 2.0, stopping) is None
    over = judged(replace(TRAINS, phase=Phase.STOPPED, settled=Intent.STOP), 2.0, stopping)
    assert over is not None
    assert (over.status.phase, over.status.reason.message) == (Phase.STOPPED, "stopped on request")
    away = replace(TRAINS, trouble="no route to host")
    assert judged(away, 60.0, stopping) is None
    given_up = judged(away, 61.0, stopping)
    assert given_up is not None
    assert given_up.status.reason.message == "stopped on request; west did not answer and keeps its client"
    deleted = replace(over, intent=Intent.DELETE)
    seen = Snapshot(nodes=(), workloads=(), pods=(), parents=(deleted,), sites={"f": {"west": TRAINS}})
    assert judge_parents(seen, 3.0) == []
    gone = replace(TRAINS, phase=None, settled=Intent.DELETE)
    (change,) = judge_parents(replace(seen, sites={"f": {"west": gone}}), 3.0)
    assert change.forget


def test_the_client_elsewhere_follows_its_federation_and_its_window() -> None:
    federation = a_federation(BEGUN, ELSEWHERE)
    night = 23 * 3600.0
    assert client_intent(federation, "west", night) is Intent.RUN
    assert client_intent(federation, "west", NOON) is Intent.SUSPEND
    for intent in (Intent.STOP, Intent.SUSPEND, Intent.DELETE):
        assert client_intent(replace(federation, intent=intent), "west", night) is intent
    ended = AfterStop(phase=Phase.SUCCEEDED)
    ending = replace(federation, status=replace(federation.status, phase=Phase.STOPPING, after_stop=ended))
    assert client_intent(ending, "west", night) is Intent.STOP


def test_it_succeeds_with_its_server_and_stops_its_sites() -> None:
    change = judge(a_federation(BEGUN), a_family(server=a_child(SERVER, Phase.SUCCEEDED, 50, 0.1)), 1.0)
    assert change is not None
    assert change.status is not None
    assert (change.status.phase, change.status.after_stop.phase) == (Phase.STOPPING, Phase.SUCCEEDED)
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.reason.message == "its server has finished; 50 of 50 rounds done, loss 0.1"
    assert [(order.uid, order.intent) for order in change.children] == [(name, Intent.STOP) for name in SPEC.sites]


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.STOPPED])
def test_it_fails_with_its_server(phase: Phase) -> None:
    change = judge(a_federation(BEGUN), a_family(server=a_child(SERVER, phase)), 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.after_stop.phase is Phase.FAILED
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.reason.message == f"digits-server is {phase.value}: its program failed"


def test_a_site_that_failed_for_good_is_missed_only_where_a_round_then_lacks_updates() -> None:
    one_gone = a_family(south=a_child("south", Phase.FAILED))
    change = judge(a_federation(BEGUN), one_gone, 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.phase is Phase.RUNNING
    assert "2 of 3 sites take part, south is Failed" in change.status.reason.message
    two_gone = a_family(south=a_child("south", Phase.FAILED), west=a_child("west", Phase.FAILED))
    change = judge(a_federation(BEGUN), two_gone, 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.phase is Phase.FAILED
    assert change.status.after_stop.reason.message == (
        "1 site left, and a round needs 2; digits-south is Failed: its program failed"
    )


def test_a_site_is_suspended_outside_of_its_window_and_resumed_in_it() -> None:
    spec = replace(SPEC, sites={**SPEC.sites, "south": Site(window="22:00-06:00")})
    change = judge(a_federation(BEGUN, spec), a_family(), NOON)
    assert change is not None
    assert [(order.uid, order.intent) for order in change.children] == [("south", Intent.SUSPEND)]
    asleep = replace(a_child("south", Phase.SUSPENDED), intent=Intent.SUSPEND)
    night = 23 * 3600.0
    change = judge(a_federation(BEGUN, spec), a_family(south=asleep), night)
    assert change is not None
    assert [(order.uid, order.intent) for order in change.children] == [("south", Intent.RUN)]
    assert next_at(a_federation(BEGUN, spec), a_family(), NOON) == 22 * 3600.0
    assert next_at(a_federation(BEGUN, spec), a_family(), night) == 30 * 3600.0
    assert next_at(a_federation(BEGUN), a_family(), NOON) is None


PRIVATE = replace(SPEC, min_sites=3, privacy=Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise=3.0))


def test_the_privacy_that_is_spent_is_shown_with_each_round() -> None:
    server = a_child(SERVER, step=4, loss=0.5)
    assert server.progress is not None
    server = replace(server, progress=replace(server.progress, metrics={"releases": 5.0}))
    change = judge(a_federation(BEGUN, PRIVATE), a_family(server=server), 1.0)
    assert change is not None
    assert change.status is not None
    spent = epsilon_spent(5, 1e-5, 3.0, 1.0)
    assert f"privacy spent: epsilon {spent:.4g} of 8 at delta 1e-05" in change.status.reason.message


def test_it_ends_with_its_privacy_budget_before_its_rounds() -> None:
    change = judge(a_federation(BEGUN, PRIVATE), a_family(server=a_child(SERVER, Phase.SUCCEEDED, 4, 0.1)), 1.0)
    plan = noise_plan(PRIVATE)
    assert plan is not None
    assert change is not None
    assert change.status is not None
    assert change.status.after_stop.phase is Phase.SUCCEEDED
    assert change.status.after_stop.reason is not None
    message = change.status.after_stop.reason.message
    assert message.startswith("its privacy budget is spent, and its server has finished; ")
    assert " of 50 rounds done" in message


def test_an_update_that_was_left_out_is_told_with_its_site_and_the_cause() -> None:
    server = a_child(SERVER, step=4, loss=0.5)
    assert server.progress is not None
    metrics = {"not_finite.south": 1.0, "misshapen.stranger": 1.0}
    server = replace(server, progress=replace(server.progress, metrics=metrics))
    change = judge(a_federation(BEGUN), a_family(server=server), 1.0)
    assert change is not None
    assert change.event is not None
    assert (change.event.type, change.event.reason.message) == (
        "UpdateLeftOut",
        "4 of 50 rounds done, loss 0.5; left out the update of south: it has a value that is NaN or infinite",
    )
    assert change.status is not None
    assert build(FederationDetail, plain(change.status.detail)) == change.status.detail
    assert server.progress is not None
    following = replace(server, progress=replace(server.progress, step=5, metrics=metrics))
    change = judge(
        a_federation(FederationDetail(submitted=True, round=4, left_out={"not_finite.south": 1})),
        a_family(server=following),
        2.0,
    )
    assert change is not None
    assert change.event is not None
    assert change.event.type == "RoundDone"


def test_a_deleted_server_ends_it() -> None:
    family = Family(children={"north": a_child("north")})
    change = judge(a_federation(BEGUN), family, 1.0)
    assert change is not None
    assert change.status is not None
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.reason.message == "its server was deleted"
