"""Finds the cluster that a command speaks to: options that every such command has, and what follows from them.

Nothing of Kubernetes is imported until a command asks for it.
"""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from fairlead.cluster.client import ClusterClient
    from fairlead.cluster.kubernetes.api.client import Client
    from fairlead.cluster.kubernetes.api.config import Access
    from fairlead.cluster.listing import PagedClient

LOCAL, KUBERNETES = "local", "kubernetes"
VARIABLES = {"cluster": "FAIRLEAD_CLUSTER", "context": "FAIRLEAD_CONTEXT", "namespace": "FAIRLEAD_NAMESPACE"}

_NAMESPACE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster that is meant.

    Attributes:
        context: Of the kubeconfig; None for the current one, or for the cluster that this process runs in.
        namespace: None for the context's own.
        options: What the command line said of it; the environment says the rest again by itself.
    """

    cluster: str = LOCAL
    context: str | None = None
    namespace: str | None = None
    options: tuple[str, ...] = ()

    @property
    def is_kubernetes(self) -> bool:
        return self.cluster == KUBERNETES

    def open(self, *, is_to_submit: bool = False) -> "ClusterClient":
        """The cluster; its nobody looking after it is told, and mended where that is ours to do, as is its trouble.

        Args:
            is_to_submit: Nothing comes of it while the cluster is in trouble.

        Raises:
            ClusterError: It cannot be reached, or is in trouble.
        """
        from fairlead.cli.show import message
        from fairlead.errors import ClusterError

        cluster = self.quietly()
        cluster.nudge()
        trouble = cluster.trouble()
        if trouble is not None and is_to_submit:
            raise ClusterError(trouble)
        for told in (cluster.unattended(), trouble):
            if told is not None:
                message(f"fairlead: {told}")
        return cluster

    def quietly(self) -> "ClusterClient":
        """The cluster, whoever looks after it."""
        from fairlead.control.opening import open_kubernetes, open_local

        if not self.is_kubernetes:
            return open_local()
        import logging

        # What the threads of a watch meet is told by the commands, once and in a sentence.
        logging.getLogger("fairlead.cluster").setLevel(logging.ERROR)
        return open_kubernetes(context=self.context, namespace=self.namespace, options=self.options)

    def paged(self) -> "PagedClient":
        """Open the cluster for whoever looks at it for long: it follows what changes, and answers from that."""
        from fairlead.control.opening import open_local

        if not self.is_kubernetes:
            return open_local()
        from fairlead.cluster.kubernetes.client.user_client import UserClient

        cluster = self.quietly()
        assert isinstance(cluster, UserClient), "there are two kinds of clusters"
        cluster.wait(0.0)
        return cluster

    def access(self) -> "Access":
        """Find the way to the Kubernetes cluster; its namespace is the one that is meant.

        Raises:
            ClusterError: No such context, or it cannot be used.
        """
        from dataclasses import replace

        from fairlead.cluster.kubernetes.api.config import find_access

        access = find_access(context=self.context)
        return access if self.namespace is None else replace(access, namespace=self.namespace)

    def client(self) -> "Client":
        """A client of the Kubernetes cluster, with bounds that fit one person's command."""
        from fairlead.cluster.kubernetes.api.client import Client
        from fairlead.cluster.kubernetes.client.user_client import PERSONAL

        return Client(self.access(), PERSONAL)


def cluster_options(command: Command) -> Command:
    """Add ``--cluster``, ``--context`` and ``--namespace``; the function gets the ``target: Target``."""
    return _with_options(command, [_CLUSTER, _CONTEXT, _NAMESPACE])


def kubernetes_options(command: Command) -> Command:
    """For what exists on Kubernetes only: ``--context`` and ``--namespace``; the ``target`` is a Kubernetes cluster."""
    return _with_options(command, [_CONTEXT, _NAMESPACE])


def target_of(values: Mapping[str, str | None], given: frozenset[str]) -> Target:
    """Find the cluster that options and variables mean; an option on the command line outweighs the environment.

    Args:
        values: Of ``cluster``, ``context`` and ``namespace``; empty text counts as nothing.
        given: Those of them that stood on the command line.

    Raises:
        click.UsageError: They contradict each other.
    """
    context, namespace = values.get("context") or None, values.get("namespace") or None
    cluster = values.get("cluster") or None
    if namespace is not None and not _NAMESPACE_NAME.fullmatch(namespace):
        raise click.UsageError(
            f"{_say('namespace', given)} {namespace!r}: a namespace has small letters, digits and - in its name."
        )
    named = {name for name, value in (("context", context), ("namespace", namespace)) if value is not None}
    if cluster == LOCAL and named:
        if "cluster" in given and not named & given:
            return Target()
        if "cluster" in given or not named & given:
            first = "context" if "context" in named else "namespace"
            raise click.UsageError(
                f"{_say('cluster', given)} is {LOCAL}, and {_say(first, given)} is {values[first]!r}, which only "
                f"Kubernetes has: give one of them, or {KUBERNETES} as the cluster."
            )
        cluster = None
    is_kubernetes = cluster == KUBERNETES or bool(named)
    if not is_kubernetes:
        return Target()
    said = tuple(f"--{name}={values[name]}" for name in VARIABLES if name in given and values.get(name))
    return Target(cluster=KUBERNETES, context=context, namespace=namespace, options=said)


def target_in(context: click.Context) -> Target:
    """Find the cluster that the options of a command line mean, as far as it was read; for completion too."""
    known = {name for name in VARIABLES if name in context.params}
    given = frozenset(name for name in known if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    values = {name: context.params[name] for name in known}
    if any(parameter.name == "cluster" for parameter in context.command.params):
        return target_of(values, given)
    return target_of({**values, "cluster": KUBERNETES}, given)


def _with_options(command: Command, options: list[Callable[[Command], Command]]) -> Command:
    @wraps(command)
    def with_target(**parameters: Any) -> Any:
        target = target_in(click.get_current_context())
        own = {name: value for name, value in parameters.items() if name not in VARIABLES}
        return command(target=target, **own)

    found: Any = with_target
    for option in reversed(options):
        found = option(found)
    result: Command = found
    return result


def _say(name: str, given: frozenset[str]) -> str:
    return f"--{name}" if name in given else VARIABLES[name]


class _Cluster(click.Choice[str]):
    """One of the clusters; a wrong word is said to be of the variable, where it stands there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if ctx is not None and ctx.get_parameter_source("cluster") is ParameterSource.ENVIRONMENT:
                raise click.BadParameter(error.message, param_hint=f"the variable {VARIABLES['cluster']}") from None
            raise


_CLUSTER = click.option(
    "--cluster",
    type=_Cluster([LOCAL, KUBERNETES]),
    envvar=VARIABLES["cluster"],
    help="This machine (the default), or the current context of the kubeconfig.",
)
_CONTEXT = click.option(
    "--context", envvar=VARIABLES["context"], metavar="NAME", help="A context of the kubeconfig; means kubernetes."
)
_NAMESPACE = click.option(
    "-n",
    "--namespace",
    envvar=VARIABLES["namespace"],
    metavar="NAME",
    help="A namespace other than the context's; means kubernetes.",
)
