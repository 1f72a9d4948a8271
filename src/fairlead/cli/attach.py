"""``fairlead attach``: follow a run that is under way."""

import click

from fairlead.cli.follow import follow
from fairlead.cli.names import RunName
from fairlead.cluster.local.cluster import LocalCluster


@click.command()
@click.argument("name", type=RunName())
def attach(name: str) -> int:
    """Follow NAME as `fairlead run` does; Ctrl-C leaves it running."""
    cluster = LocalCluster.open()
    cluster.nudge()
    return follow(cluster, cluster.find(name).uid)
