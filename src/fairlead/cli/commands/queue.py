"""``fairlead queue``: pending runs in queue order, with expected starts."""

import time
from typing import Any

import click

from fairlead.cli.show import as_json, json_option, message, table
from fairlead.cli.target import Target, cluster_options
from fairlead.errors import NotAllowed
from fairlead.policy.queue.start_forecast import Expected
from fairlead.policy.queue.start_outlook import Outlook, outlook
from fairlead.state.snapshot import Intent, Phase, Snapshot, is_leaf
from fairlead.text.quantities import describe_duration, describe_need

SOON_S = 1.0
DAY_S = 86_400.0


@click.command()
@json_option
@cluster_options
def queue(target: Target, json_: bool) -> None:
    """List pending runs in the order in which they start, with expected start times and reasons.

    A start time is the latest one if no other run is submitted and every run ends by its `max_duration`. On Kubernetes
    the list covers the whole cluster.
    """
    cluster = target.open()
    now = time.time()
    try:
        told = outlook(cluster.snapshot(), now)
    except NotAllowed as error:
        told = _own(Snapshot(nodes=(), workloads=tuple(filter(is_leaf, cluster.unfinished())), pods=()), str(error))
    if json_:
        print(as_json([_json(place, each, told) for place, each in enumerate(told.queue, 1)]))
    elif told.queue:
        head = ("#", "NAME", "TEAM", "PRIORITY", "NEEDS", "WAITS", "STARTS", "WHY")
        print(table([head, *(_row(place, each, told, now) for place, each in enumerate(told.queue, 1))]))
    else:
        message("Nothing waits.")


def _own(snapshot: Snapshot, why: str) -> Outlook:
    """Return the user's own pending runs, oldest first, for a user who may not read the whole cluster."""
    waiting = (
        run
        for run in snapshot.workloads
        if run.intent is Intent.RUN and run.status.phase in (Phase.PENDING, Phase.RESTARTING)
    )
    return Outlook(statuses={}, queue=tuple(Expected(run=run, unknown=why) for run in waiting))


def _json(place: int, each: Expected, told: Outlook) -> dict[str, Any]:
    run, reason = each.run, told.statuses.get(each.run.uid, each.run.status).reason
    return {
        "position": place,
        "name": run.spec.name,
        "team": run.spec.team,
        "uid": run.uid,
        "labels": dict(run.spec.labels),
        "phase": run.status.phase.value,
        "priority": run.spec.priority,
        "needs": describe_need(run.spec),
        "waits_since": run.status.since,
        "starts_at": each.start,
        "unknown": each.unknown or None,
        "reason": {"code": reason.code.value, "message": reason.message, "remedy": reason.remedy},
    }


def _row(place: int, each: Expected, told: Outlook, now: float) -> tuple[str, ...]:
    run = each.run
    return (
        str(place),
        run.spec.name,
        run.spec.team,
        str(run.spec.priority),
        describe_need(run.spec),
        describe_duration(max(0.0, now - run.status.since)),
        _say_start(each, now),
        told.statuses.get(run.uid, run.status).reason.message,
    )


def _say_start(each: Expected, now: float) -> str:
    if each.start is None:
        return f"unknown: {each.unknown}"
    if each.start - now <= SOON_S:
        return "now"
    form = "%H:%M" if each.start - now < DAY_S / 2 else "%F %H:%M"
    return f"about {time.strftime(form, time.localtime(each.start))}"
