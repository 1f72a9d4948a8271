"""``fairlead events``: events of runs with their reasons."""

from collections.abc import Iterator

import click

from fairlead.cli.families import with_descendants
from fairlead.cli.names import RunName, find_all
from fairlead.cli.show import as_json, describe_time, event_json, json_option, table
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.port import EventRecord
from fairlead.errors import NotFound
from fairlead.state.snapshot import AnyWorkload

LOOK_S = 1.0
NAME_WIDTH, TYPE_WIDTH = 16, 18


@click.command()
@click.argument("names", nargs=-1, type=RunName())
@click.option("-f", "--follow", is_flag=True, help="Follow until NAMES have ended; without NAMES, until Ctrl-C.")
@json_option
@cluster_options
def events(target: Target, names: tuple[str, ...], follow: bool, json_: bool) -> None:
    """Show events of NAMES and their children, or of all runs, oldest first; with --json one object per line."""
    cluster = target.open()
    named = find_all(cluster, names)
    uids = _uids(cluster, named)
    past = _of(cluster, uids, 0)
    if json_:
        _print_each(past, json_)
    elif past or not follow:
        print(table([("TIME", "RUN", "WHAT", "WHY"), *(_row(event) for event in past)]), flush=True)
    if follow:
        for new in _coming(cluster, named, past[-1].id if past else 0):
            _print_each(new, json_)


def _uids(cluster: ClusterClient, named: list[AnyWorkload]) -> frozenset[str]:
    """Return the uids of the named runs and their descendants."""
    return frozenset(workload.uid for run in named for workload in with_descendants(cluster, run))


def _coming(cluster: ClusterClient, named: list[AnyWorkload], after: int) -> Iterator[list[EventRecord]]:
    """Yield new events until all named runs have ended."""
    while True:
        over = bool(named) and all(_is_over(cluster, run.uid) for run in named)
        uids = _uids(cluster, named)
        new = _of(cluster, uids, after)
        if new:
            after = new[-1].id
            yield new
        if over:
            return
        cluster.nudge()
        cluster.wait(LOOK_S)


def _of(cluster: ClusterClient, uids: frozenset[str], after: int) -> list[EventRecord]:
    if len(uids) == 1:
        return list(cluster.events(next(iter(uids)), after=after))
    return [event for event in cluster.events(after=after) if not uids or event.workload_uid in uids]


def _is_over(cluster: ClusterClient, uid: str) -> bool:
    try:
        return cluster.get(uid).status.phase.is_final
    except NotFound:  # deleted meanwhile, with its events
        return True


def _row(event: EventRecord) -> tuple[str, ...]:
    return describe_time(event.at), event.run, event.type, event.reason.message


def _print_each(records: list[EventRecord], json_: bool) -> None:
    for event in records:
        if json_:
            print(as_json(event_json(event)), flush=True)
        else:
            at, run, what, why = _row(event)
            print(f"{at}  {run:<{NAME_WIDTH}}  {what:<{TYPE_WIDTH}}  {why}", flush=True)
