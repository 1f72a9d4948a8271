"""Names of runs as arguments, completed from the database."""

import click
from click.shell_completion import CompletionItem


class RunName(click.ParamType[str]):
    """A run's name, its uid, or the beginning of its uid."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from fairlead.cluster.local.cluster import LocalCluster

        cluster = LocalCluster.open()
        try:
            return [CompletionItem(name) for name in cluster.store.names() if name.startswith(incomplete)]
        finally:
            cluster.close()
