"""``fairlead operator``: run the operator of a cluster, inside the cluster or outside."""

import logging
import os
import secrets
import sys

import click

from fairlead.cli.operator_options import allow_option, policy_option, show_names_option
from fairlead.cli.retaining import keep_options
from fairlead.cli.system_namespaces import networks_of, trust_options, trusted
from fairlead.cluster.kubernetes.api.client import Client, Limits
from fairlead.cluster.kubernetes.api.config import find_access
from fairlead.cluster.kubernetes.client.karmada import is_karmada
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.control.controllers import OperatorSettings
from fairlead.control.health import JsonLines
from fairlead.control.operator import Operator
from fairlead.control.span_receiver import receiver_of
from fairlead.control.termination import hold_signals, stop_on_signals
from fairlead.errors import Conflict
from fairlead.policy.kinds.retention import OF_CLUSTERS, Retention
from fairlead.specs.overlay_allowance import OverlayAllowance


@click.command()
@click.option("--context", help="Context of the kubeconfig; by default the current one, or the cluster it runs in.")
@click.option(
    "--namespace", envvar="POD_NAMESPACE", default="fairlead-system", show_default=True, help="Namespace of its Lease."
)
@click.option("--only", "watch_namespace", help="Manage the runs of this namespace only.")
@click.option("--listen", help="HOST:PORT of /livez, /readyz, /metrics; in a pod 0.0.0.0:8080, else 127.0.0.1:8080.")
@click.option("--image", default="python:3.12-slim", show_default=True, help="Image of runs without `image`.")
@click.option("--checkpoint-to", help="Directory or URL of checkpoints of runs without `checkpoint.to`.")
@click.option("--placeholder-image", help="Image of placeholder pods; the run's own by default.")
@click.option(
    "--ledger",
    envvar="FAIRLEAD_LEDGER",
    metavar="PLACE",
    help="Record usage and costs of runs in a file, or in PostgreSQL at postgresql://USER@HOST/DATABASE.",
)
@policy_option
@show_names_option
@allow_option
@keep_options("--keep-last", OF_CLUSTERS)
@trust_options
@click.option(
    "--per-second", default=200.0, show_default=True, help="Maximum number of requests per second to the API server."
)
@click.option(
    "--log-format", type=click.Choice(["json", "text"]), default="json", show_default=True, help="Format of log lines."
)
def operator(
    context: str | None,
    namespace: str,
    watch_namespace: str | None,
    listen: str | None,
    image: str,
    checkpoint_to: str | None,
    placeholder_image: str | None,
    ledger: str | None,
    policy: str,
    show_names: bool,
    allowed: OverlayAllowance,
    keeps: Retention,
    system_namespaces: tuple[str, ...],
    prometheus_hosts: tuple[str, ...],
    cluster_networks: tuple[str, ...],
    per_second: float,
    log_format: str,
) -> None:
    """Run the operator until it gets a signal; several may run, and one of them leads.

    It deletes finished runs that neither --keep nor --keep-last keeps: without these options, 30 days after their end.
    Runs that Argo CD, Flux or Helm would create again stay.
    """
    hold_signals()

    pod = os.environ.get("POD_NAME")
    listen = listen or ("127.0.0.1:8080" if pod is None else "0.0.0.0:8080")
    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise click.UsageError(f"--listen {listen!r}: give HOST:PORT, such as 0.0.0.0:8080.")
    _log(log_format)
    # What fails is tried again by the loop, whose threads meanwhile do other work.
    limits = Limits(per_second=per_second, burst=round(10 * per_second), patience_s=8.0)
    client = Client(find_access(context=context), limits)
    if is_karmada(client):
        raise Conflict(
            f"{client.access.context} is a control plane of Karmada, which gives its runs to the operators of other "
            "clusters; a second operator here would run them twice. Start one with the context of such a cluster."
        )
    it = Operator(
        client,
        PodSettings(
            runtime=bundle_name(),
            image=image,
            checkpoint_to=checkpoint_to,
            placeholder_image=placeholder_image,
            system=trusted(system_namespaces, prometheus_hosts),
        ),
        OperatorSettings(
            namespace=namespace,
            watch_namespace=watch_namespace,
            listen=(host or "0.0.0.0", int(port)),
            guards_metrics=pod is not None,
            identity=None if pod is None else f"{pod}-{secrets.token_hex(3)}",
            policy=policy,
            show_names=show_names,
            allowed=allowed,
            keeps=keeps,
            ledger=ledger or None,
            spans=receiver_of(os.environ),
            cluster_networks=networks_of(cluster_networks),
        ),
    )
    stop_on_signals(it.stop)
    it.run()


def _log(form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
