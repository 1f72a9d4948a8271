"""``fairlead queue``: pending runs in queue order, with expected starts."""

import time
from typing import Any

import click

from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.errors import NotAllowed
from fairlead.policy.queue.shared_view import is_of_another_team
from fairlead.policy.queue.start_forecast import Expected
from fairlead.policy.start_outlook import Outlook, outlook
from fairlead.state.plan import HeldRoom
from fairlead.state.snapshot import Intent, Phase, Snapshot, is_leaf
from fairlead.text.quantities import describe_cpu, describe_duration, describe_need

SOON_S = 1.0
DAY_S = 86_400.0
# A shorter time is no news to anybody.
LEAST_DEBT_S = 60.0
NOT_ALLOWED = "your account may not read the whole cluster"


@click.command()
@json_option
@cluster_options
def queue(target: Target, json_: bool) -> None:
    """List pending runs in the order in which they start, with expected start times and reasons.

    A start time is the latest one if no other run is submitted and every run ends by its `max_duration`. On Kubernetes
    the list covers the whole cluster; runs of other teams have no names if your account may not read them.
    """
    cluster = target.open()
    now = time.time()
    try:
        schedule = outlook(cluster.snapshot(), now)
    except NotAllowed as error:
        # Said once, and not in each row.
        message(f"Only your own runs, without their starts: {error}")
        schedule = _own(Snapshot(nodes=(), workloads=tuple(filter(is_leaf, cluster.unfinished())), pods=()))
    if schedule.problem:
        message(f"{schedule.problem}.")
    if json_:
        print(as_json([_json(place, expected, schedule) for place, expected in enumerate(schedule.queue, 1)]))
    elif schedule.queue:
        head = ("#", "NAME", "TEAM", "PRIORITY", "NEEDS", "WAITS", "STARTS", "WHY")
        print(
            table([head, *(_row(place, expected, schedule, now) for place, expected in enumerate(schedule.queue, 1))])
        )
        for room in schedule.held:
            message(_say_held(room))
        for line in _say_debts(schedule):
            message(line)
    else:
        message("Nothing waits.")


def _own(snapshot: Snapshot) -> Outlook:
    """Return the user's own pending runs, oldest first, for a user who may not read the whole cluster."""
    waiting = (
        run
        for run in snapshot.workloads
        if run.intent is Intent.RUN and run.status.phase in (Phase.PENDING, Phase.RESTARTING)
    )
    return Outlook(statuses={}, queue=tuple(Expected(run=run, unknown=NOT_ALLOWED) for run in waiting))


def _json(place: int, expected: Expected, schedule: Outlook) -> dict[str, Any]:
    run, reason = expected.run, schedule.statuses.get(expected.run.uid, expected.run.status).reason
    return {
        "position": place,
        **(
            {"name": None, "team": None, "uid": None}
            if is_of_another_team(run)
            else {"name": run.spec.name, "team": run.spec.team, "uid": run.uid}
        ),
        "labels": dict(run.spec.labels),
        "phase": run.status.phase.value,
        "priority": run.spec.priority,
        "needs": describe_need(run.spec),
        "waits_since": run.status.since,
        "starts_at": expected.start,
        "unknown": expected.unknown or None,
        "team_debt_s": None if is_of_another_team(run) else round(schedule.debts.get(run.spec.team, 0.0)),
        "held_free_gpus": sum(room.gpu_milli for room in schedule.held if room.uid == run.uid) / 1000,
        "reason": {"code": reason.code.value, "message": reason.message, "remedy": reason.remedy},
    }


def _row(place: int, expected: Expected, schedule: Outlook, now: float) -> tuple[str, ...]:
    run = expected.run
    is_hidden = is_of_another_team(run)
    return (
        str(place),
        "-" if is_hidden else run.spec.name,
        "another team" if is_hidden else run.spec.team,
        str(run.spec.priority),
        describe_need(run.spec),
        describe_duration(max(0.0, now - run.status.since)),
        _say_start(expected, now),
        schedule.statuses.get(run.uid, run.status).reason.message,
    )


def _say_held(room: HeldRoom) -> str:
    """Return how much is held free for a run, which idles until it starts unless shorter runs use it."""
    what = f"{room.gpu_milli / 1000:g} GPUs" if room.gpu_milli else describe_cpu(room.cpu_milli)
    until = (
        " until it starts, which is not known" if room.start is None else "; runs that end before it starts use them"
    )
    return f"{what} are held free for {room.team}/{room.name}{until}."


def _say_debts(schedule: Outlook) -> list[str]:
    """Return a line for each team with pending runs that has had more than its share."""
    teams = sorted({expected.run.spec.team for expected in schedule.queue if not is_of_another_team(expected.run)})
    return [
        f"{team} has had {describe_duration(debt_s)} of the whole cluster beyond its share: beyond their shares, "
        "other teams with less of it come first, and no run that is wider than its share has its turn."
        for team in teams
        if (debt_s := schedule.debts.get(team, 0.0)) >= LEAST_DEBT_S
    ]


def _say_start(expected: Expected, now: float) -> str:
    if expected.unknown == NOT_ALLOWED:
        return "unknown"
    if expected.start is None:
        return f"unknown: {expected.unknown}"
    if expected.start - now <= SOON_S:
        return "now"
    form = "%H:%M" if expected.start - now < DAY_S / 2 else "%F %H:%M"
    return f"about {time.strftime(form, time.localtime(expected.start))}"
