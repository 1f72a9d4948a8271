"""``fairlead events``: what happened, each with its reason."""

import time
from dataclasses import asdict

import click

from fairlead.cli.names import RunName
from fairlead.cli.show import as_json, table
from fairlead.cluster.local.cluster import LocalCluster


@click.command()
@click.argument("name", required=False, type=RunName())
@click.option("--json", "json_", is_flag=True, help="A JSON object for each event.")
def events(name: str | None, json_: bool) -> None:
    """Show what happened to NAME, or to all runs, oldest first."""
    cluster = LocalCluster.open()
    cluster.nudge()
    found = cluster.events(None if name is None else cluster.find(name).uid)
    if json_:
        for event in found:
            print(as_json(asdict(event)))
        return
    rows = [
        (time.strftime("%F %T", time.localtime(event.at)), event.run, event.type, event.reason.message)
        for event in found
    ]
    print(table([("TIME", "RUN", "WHAT", "WHY"), *rows]))
