"""``fairlead uninstall``: remove Fairlead from a cluster, and print what stays and why."""

import sys

import click

from fairlead.cli.commands.install import done_json, show_done
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import VARIABLES
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import find_access
from fairlead.cluster.kubernetes.client.installation import installed_in
from fairlead.cluster.kubernetes.client.uninstallation import uninstall as take_away
from fairlead.cluster.kubernetes.manifests.ledger_storage import LedgerStorage, Storage, render_storage
from fairlead.cluster.kubernetes.names import SYSTEM_NAMESPACE
from fairlead.control.metrics.prometheus_operator import monitoring_objects


@click.command()
@click.option(
    "--context",
    envvar=VARIABLES["context"],
    metavar="NAME",
    help="Context of the kubeconfig; the current one by default.",
)
@click.option("--namespace", help="The operator's namespace; found by default.")
@click.option("--with-runs", is_flag=True, help="Stop and delete all runs first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout", default=120.0, show_default=True, type=click.FloatRange(min=1), help="Seconds to wait for the removal."
)
@json_option
def uninstall(
    context: str | None, namespace: str | None, with_runs: bool, yes: bool, timeout: float, json_: bool
) -> None:
    """Remove the operator, its roles, and the CRDs that have no objects.

    Runs stay without --with-runs, and so do CRDs with objects. Everything that stays is listed.
    """
    client = Client(find_access(context=context))
    if not yes:
        what = f"Fairlead{' and all runs' if with_runs else ''} from context {client.access.context}"
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(
                f"standard input is not a terminal, so removing {what} cannot be confirmed; give --yes."
            )
        click.confirm(f"Remove {what} ({client.access.server})?", abort=True, err=True)
    place = namespace or installed_in(client) or SYSTEM_NAMESPACE
    tell = (lambda _: None) if json_ else show_done
    address = LedgerStorage(kind=Storage.DATABASE, url="-")  # the Secret; a volume stays, with its content
    extras = [*monitoring_objects(place, gateways=True), *render_storage(address, place)]
    report = take_away(client, place, with_runs=with_runs, tell=tell, timeout_s=timeout, extras=extras)
    if json_:
        print(as_json({"objects": [done_json(change) for change in report.done], "left": report.left}))
    for remark in report.left:
        message(remark)
    if not report.done:
        message(f"There is no Fairlead in context {client.access.context}.")
    elif not report.left:
        message(f"Nothing of Fairlead is left in context {client.access.context}.")
