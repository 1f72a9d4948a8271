"""``fairlead metrics``: print or serve metrics for Prometheus."""

import errno
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import message
from fairlead.control.metrics.dashboards import DASHBOARDS, grafana
from fairlead.control.metrics.exposition import exposition
from fairlead.control.metrics.rules import rule_groups
from fairlead.control.metrics.served_endpoints import served_metrics
from fairlead.control.metrics.server import metrics_server
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, Conflict

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from fairlead.control import opening
    from fairlead.control.metrics import local
    from fairlead.control.metrics.readings import Readings
else:
    local = deferred("fairlead.control.metrics.local")
    opening = deferred("fairlead.control.opening")


@click.group(invoke_without_command=True)
@click.option("--port", type=click.IntRange(0, 65535), help="Serve them at this port until Ctrl-C; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at, with --port.")
@click.pass_context
def metrics(ctx: click.Context, port: int | None, host: str) -> None:
    """Print metrics of this machine in Prometheus' text format, or serve them at /metrics with --port.

    They cover runs, queue, decisions, nodes, progress, goodput, costs, checkpoints, GPUs and endpoints. Write them to a
    file for node_exporter's textfile collector, or let Prometheus scrape the port. The command changes and starts
    nothing.
    """
    if ctx.invoked_subcommand is not None:
        if port is not None:
            raise click.UsageError("--port cannot be combined with a subcommand.")
        return
    if port is None and ctx.get_parameter_source("host") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--host is for --port.")
    if port is not None:
        _serve(host, port)
        return
    readings, further = _read()
    sys.stdout.write(exposition(readings, further=further).decode())


@metrics.command()
def rules() -> None:
    """Print the alerts as a Prometheus rule file."""
    import yaml

    print(yaml.safe_dump(rule_groups(), sort_keys=False, width=120, allow_unicode=True), end="")


@metrics.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def dashboards(directory: Path) -> None:
    """Write the Grafana dashboards into DIRECTORY, one JSON file each.

    The directory is created if needed; files of the same names are replaced.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for dashboard in DASHBOARDS:
            file = directory / f"{dashboard.uid}.json"
            file.write_text(json.dumps(grafana(dashboard), indent=2) + "\n")
            print(file)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be written: {error.strerror}.") from error


def _read() -> "tuple[Readings, tuple[Metric, ...]]":
    cluster = opening.open_local()
    try:
        return local.read_local(cluster), served_metrics(cluster.home.serving)
    finally:
        cluster.close()


def _serve(host: str, port: int) -> None:
    cluster = opening.open_local()
    try:
        further = partial(served_metrics, cluster.home.serving)
        server = metrics_server(lambda: local.read_local(cluster), host, port, further)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise Conflict(f"{host}:{port} {why}. Give another with `--port`, or 0 for any that is free.") from error
    name = f"[{host}]" if ":" in host else host
    message(f"Serving http://{name}:{server.server_address[1]}/metrics until Ctrl-C.")
    try:
        server.serve_forever()
    finally:
        server.server_close()
        cluster.close()
