"""``fairlead attach``: follow active runs."""

import click

from fairlead.cli.follow import follow
from fairlead.cli.names import RunName, find_all
from fairlead.cli.target import Target, cluster_options


@click.command()
@click.argument("names", nargs=-1, required=True, type=RunName())
@click.option("--json", "json_", is_flag=True, help="Print an object per line: log, event, progress or end.")
@cluster_options
def attach(target: Target, names: tuple[str, ...], json_: bool) -> int:
    """Follow NAMES as `fairlead run` does; Ctrl-C leaves them running."""
    cluster = target.open()
    return follow(cluster, find_all(cluster, names), json_=json_)
