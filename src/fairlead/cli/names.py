"""Resolves names of runs in arguments, and completes them from the selected cluster."""

import click
from click.shell_completion import CompletionItem

from fairlead.cli.target import target_in
from fairlead.cluster.client import ClusterClient
from fairlead.errors import FairleadError
from fairlead.policy.kinds.table import leaf
from fairlead.state.snapshot import AnyWorkload, Workload


class RunName(click.ParamType[str]):
    """A run's name, alone or as TEAM/NAME, its uid, or the first four or more characters of its uid."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            cluster = target_in(ctx).quietly()
            names = cluster.names()
        except (FairleadError, click.UsageError):  # no completions; the command itself reports the error
            return []
        cluster.close()
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def find(cluster: ClusterClient, text: str) -> AnyWorkload:
    """Return the workload of a name: the unfinished one, else the newest.

    Raises:
        NotFound: No workload has the name.
        Conflict: Unfinished runs of several teams have the name.
    """
    team, slash, name = text.rpartition("/")
    return cluster.find(name, team if slash else None)


def find_run(cluster: ClusterClient, text: str) -> Workload:
    """Return the run of a name, which must have pods.

    Raises:
        NotFound, Conflict: As ``find``; or it has children instead.
    """
    return leaf(find(cluster, text))


def find_all(cluster: ClusterClient, texts: tuple[str, ...]) -> list[AnyWorkload]:
    """Return the workloads of names, each once. Called before any change, so that a wrong name changes nothing."""
    return list({run.uid: run for run in (find(cluster, text) for text in texts)}.values())
