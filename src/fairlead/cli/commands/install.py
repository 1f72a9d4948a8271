"""``fairlead install``: install Fairlead on a cluster, or print the objects for that."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead import __version__
from fairlead.cli.imaging import base_option, platform_option, to_registry
from fairlead.cli.operator_options import allow_option, policy_option, show_names_option
from fairlead.cli.retaining import keep_options
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.system_namespaces import networks_of, trust_options, trusted
from fairlead.cli.target import VARIABLES
from fairlead.cluster.kubernetes.api.applying import ApplyOutcome
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import find_access
from fairlead.cluster.kubernetes.client import installation as installing
from fairlead.cluster.kubernetes.client.cluster_networks import cluster_networks as the_clusters_networks
from fairlead.cluster.kubernetes.client.installation import install_on_karmada
from fairlead.cluster.kubernetes.client.karmada import is_karmada
from fairlead.cluster.kubernetes.manifests.chart import render_chart
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install, traces_port
from fairlead.cluster.kubernetes.manifests.ledger_storage import read_place
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml
from fairlead.cluster.kubernetes.names import SYSTEM_NAMESPACE
from fairlead.control.metrics.prometheus_operator import monitoring_objects
from fairlead.errors import Conflict
from fairlead.gateway.proxying.programs import PROXIES, PYTHON
from fairlead.policy.kinds.retention import OF_CLUSTERS, Retention
from fairlead.specs.overlay_allowance import OverlayAllowance

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.api.applying import Done
    from fairlead.cluster.kubernetes.manifests.install import InstallSettings


REPLICAS = 2


@click.command()
@click.option(
    "--context",
    envvar=VARIABLES["context"],
    metavar="NAME",
    help="Context of the kubeconfig; the current one by default.",
)
@click.option(
    "--render", "only_render", is_flag=True, help="Print the objects for GitOps, without contacting a cluster."
)
@click.option(
    "--chart",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the objects to DIR as a Helm chart, without contacting a cluster.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
@click.option("--wait", is_flag=True, help="Wait until the operator is ready.")
@click.option("--timeout", default=120.0, show_default=True, type=click.FloatRange(min=0), help="Seconds for --wait.")
@click.option("--namespace", default=SYSTEM_NAMESPACE, show_default=True, help="The operator's own namespace.")
@click.option("--image", metavar="IMAGE", help="An image with Fairlead; by default the installed one of this version.")
@click.option(
    "--image-to",
    metavar="REGISTRY/NAME[:TAG]",
    help="Build the image, push it there, and install it by its digest; no Docker is needed.",
)
@base_option
@platform_option
@click.option(
    "--replicas",
    type=click.IntRange(0, 9),
    help="Number of replicas; one leads. 2 by default, 1 with --ledger volume. 0 to run it elsewhere.",
)
@click.option(
    "--ledger",
    default="none",
    show_default=True,
    metavar="PLACE",
    help="Record usage and costs in: `volume`, postgresql://USER:PASSWORD@HOST/DATABASE, or `secret:NAME` with that "
    "URL under `url`.",
)
@click.option("--page", is_flag=True, help="Serve the web page in the cluster; users sign in with a token.")
@click.option(
    "--gateways",
    type=click.IntRange(0, 9),
    default=0,
    show_default=True,
    help="Number of gateways, which endpoints with `replicas: 0..8`, `canary` or `access` need; 2 for availability.",
)
@click.option(
    "--gateway-proxy",
    type=click.Choice(PROXIES),
    default=PYTHON,
    show_default=True,
    help="The program that forwards requests to replicas; haproxy must be in the image.",
)
@click.option(
    "--partitions", is_flag=True, help="Let the operator cordon and label nodes, which `partitions` of a Pool needs."
)
@click.option(
    "--only-teams",
    is_flag=True,
    help="Let the operator write only in namespaces of Teams and those labelled fairlead.dev/runs=enabled.",
)
@policy_option
@show_names_option
@allow_option
@keep_options("--keep-last", OF_CLUSTERS)
@trust_options
@click.option(
    "--monitoring", is_flag=True, help="Add ServiceMonitor, PrometheusRule and dashboards, for the Prometheus operator."
)
@click.option(
    "--traces",
    metavar="URL",
    help="Send OpenTelemetry traces of finished runs to this receiver of OTLP over HTTP, such as "
    "http://collector.monitoring:4318.",
)
@click.option("--fewer-rules", is_flag=True, help="Leave out rules above the cost limit of Kubernetes 1.31.")
@json_option
def install(
    context: str | None,
    only_render: bool,
    chart: Path | None,
    dry_run: bool,
    wait: bool,
    timeout: float,
    namespace: str,
    image: str | None,
    image_to: str | None,
    base_image: str,
    platform: str,
    replicas: int | None,
    ledger: str,
    page: bool,
    gateways: int,
    gateway_proxy: str,
    partitions: bool,
    only_teams: bool,
    policy: str,
    show_names: bool,
    allowed: OverlayAllowance,
    keeps: Retention,
    system_namespaces: tuple[str, ...],
    prometheus_hosts: tuple[str, ...],
    cluster_networks: tuple[str, ...],
    monitoring: bool,
    traces: str | None,
    fewer_rules: bool,
    json_: bool,
) -> None:
    """Install or upgrade the CRDs, the roles and the operator on a cluster.

    Prints for each object whether it was created, changed or unchanged. Objects that Fairlead did not create are not
    changed. The operator deletes finished runs that neither --keep nor --keep-last keeps: without these options, 30
    days after their end.
    """
    if only_render and (context is not None or chart is not None or dry_run or wait or json_):
        raise click.UsageError("--render prints YAML and asks no cluster; leave the other options out.")
    if chart is not None and (context is not None or dry_run or wait or json_):
        raise click.UsageError("--chart writes files and asks no cluster; leave the other options out.")
    if dry_run and wait:
        raise click.UsageError("--dry-run changes nothing to wait for: give one of --dry-run and --wait.")
    if gateway_proxy != PYTHON and not gateways:
        raise click.UsageError(f"--gateway-proxy {gateway_proxy} is of gateways, and there are none: add --gateways 2.")
    if not only_render and chart is None and _install_on_karmada(context, dry=dry_run, json_=json_):
        return
    if traces is not None:
        try:
            traces_port(traces)
        except ValueError as error:
            raise click.UsageError(
                f"--traces {traces!r}: {error}; give the receiver's address, such as http://collector.monitoring:4318."
            ) from error
    storage = read_place(ledger)
    most = storage.most_replicas
    if most is not None and replicas is not None and replicas > most:
        raise click.UsageError(
            f"--ledger volume is on one node at a time, so that --replicas is 1 at most; {replicas} take a database, "
            "as in --ledger postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    if replicas is None:
        replicas = REPLICAS if most is None else most
    extras: list[dict[str, Any]] = []
    if monitoring:
        extras = monitoring_objects(namespace, gateways=gateways > 0)
    if image_to is not None:
        if image is not None:
            raise click.UsageError(
                "--image names an image that is there, --image-to one that is built: give one of them."
            )
        image = to_registry(base_image, platform, image_to, dry=dry_run)
    client: Client | None = None
    if not only_render and chart is None:
        client = Client(find_access(context=context))
        image = image or installing.installed_image(client, namespace, __version__)
    settings = InstallSettings(
        namespace=namespace,
        image=image or f"fairlead:{__version__}",
        replicas=replicas,
        ledger=storage,
        page=page,
        gateways=gateways,
        gateway_proxy=gateway_proxy,
        partitions=partitions,
        only_teams=only_teams,
        policy=policy,
        show_names=show_names,
        allowed=allowed,
        keeps=keeps,
        fewer_rules=fewer_rules,
        traces=traces,
        system=trusted(system_namespaces, prometheus_hosts),
        cluster_networks=networks_of(cluster_networks),
        version=__version__,
        extras=tuple(extras),
    )
    if image is None and client is None:
        message(f"The image is {settings.image}, which is on no public registry: name yours with --image.")
    if only_render:
        print(to_yaml(render_install(settings)), end="")
        return
    if chart is not None:
        _write_chart(chart, settings)
        return

    assert client is not None
    if not cluster_networks:
        settings = replace(settings, cluster_networks=the_clusters_networks(client))
    tell = (lambda _: None) if json_ else show_done
    done = installing.install(client, settings, dry=dry_run, tell=tell, has_image=image is not None)
    if wait and replicas:
        message(f"Waiting for the operator ({timeout:g} s at most)...")
        installing.await_operator(client, namespace, timeout)
    if json_:
        print(as_json([done_json(change) for change in done]))
    message(_summary(done, client.access.context, settings.replicas, dry=dry_run, ready=wait))


def _install_on_karmada(context: str | None, *, dry: bool, json_: bool) -> bool:
    """Install on a control plane of Karmada; return False on any other cluster.

    Raises:
        click.UsageError: Options of the operator were given, and none runs there.
    """
    client = Client(find_access(context=context))
    if not is_karmada(client):
        return False
    command = click.get_current_context()
    for option in command.command.params:
        source = command.get_parameter_source(option.name or "")
        if option.name not in _ALSO_ON_KARMADA and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[0]} is of the operator, and {client.access.context} is a control plane of Karmada, on "
                "which none runs: give it to `fairlead install` for the clusters that Karmada manages."
            )
    done = install_on_karmada(client, dry=dry, tell=(lambda _: None) if json_ else show_done)
    if json_:
        print(as_json([done_json(change) for change in done]))
    message(_summary(done, client.access.context, on_karmada=True, dry=dry))
    return True


_ALSO_ON_KARMADA = ("context", "dry_run", "json_")


def _write_chart(directory: Path, settings: "InstallSettings") -> None:
    if directory.exists() and any(directory.iterdir()) and not (directory / "Chart.yaml").exists():
        raise Conflict(f"{directory} has other files. Give a directory that is empty, not there yet, or has a chart.")
    for name, content in render_chart(settings).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    message(f"{directory} has the chart: `helm install fairlead {directory}`.")


def show_done(done: "Done") -> None:
    """Print an object and its outcome in a line."""
    print(f"{done.outcome.value:<13}  {done.place}{f'  ({done.why})' if done.why else ''}", flush=True)


def done_json(done: "Done") -> dict[str, Any]:
    """Return an object and its outcome as JSON."""
    return {**asdict(done.place), "outcome": done.outcome.value, "why": done.why or None}


def _summary(
    done: list["Done"], context: str, replicas: int = 0, *, dry: bool, ready: bool = False, on_karmada: bool = False
) -> str:
    counts = {outcome: sum(change.outcome is outcome for change in done) for outcome in ApplyOutcome}
    new, changed = counts[ApplyOutcome.CREATED], counts[ApplyOutcome.CHANGED]
    if dry:
        return f"{new} objects would be created and {changed} changed in context {context}; nothing was."
    if new == changed == 0:
        return f"Fairlead {__version__} is in context {context} already; nothing was changed."
    summary = f"Fairlead {__version__} is in context {context}: {new} objects created, {changed} changed."
    if on_karmada:
        return f"{summary} Karmada gives runs to its clusters now; each needs Fairlead, by `fairlead install` there."
    if not replicas:
        return f"{summary} No operator runs there; start one with `fairlead operator --context {context}`."
    if ready:
        return f"{summary} The operator is ready."
    return f"{summary} `fairlead doctor --context {context}` tells whether the operator runs."
