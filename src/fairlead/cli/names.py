"""Names of runs as arguments: completed from the database, and never taken for another run's."""

import click
from click.shell_completion import CompletionItem

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import Conflict, FairleadError
from fairlead.state.snapshot import Workload


class RunName(click.ParamType[str]):
    """A run's name, alone or as TEAM/NAME, its uid, or the beginning of its uid."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            cluster = LocalCluster.open()
        except FairleadError:  # nothing to offer; the command itself will say why
            return []
        try:
            return [CompletionItem(name) for name in cluster.store.names() if name.startswith(incomplete)]
        finally:
            cluster.close()


def find(cluster: LocalCluster, text: str) -> Workload:
    """The run that a user means: the unfinished one of that name, else the newest.

    Raises:
        NotFound: Nothing of that name.
        Conflict: Unfinished runs of several teams have the name.
    """
    team, slash, name = text.rpartition("/")
    if slash:
        return cluster.find(name, team)
    same = [run for run in cluster.store.active()[0] if run.spec.name == text and not run.status.phase.is_final]
    if len(same) > 1:
        names = ", ".join(f"{run.spec.team}/{text}" for run in same)
        raise Conflict(f"{len(same)} unfinished runs are named {text!r}; say which one: {names}.")
    return cluster.find(text)


def find_all(cluster: LocalCluster, texts: tuple[str, ...]) -> list[Workload]:
    """The runs that a user means, each once, before anything is done to any: a wrong name changes nothing."""
    return list({run.uid: run for run in (find(cluster, text) for text in texts)}.values())
