"""Finds the cluster for a command: the common options, and the client that they select.

Kubernetes modules are imported only when a command needs them.
"""

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fairlead.cli.show import message
from fairlead.cli.suggestions import suggest
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, FairleadError
from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from fairlead.cluster.client import ClusterClient
    from fairlead.cluster.kubernetes.api import client as api_client
    from fairlead.cluster.kubernetes.api import config
    from fairlead.cluster.kubernetes.api.client import Client
    from fairlead.cluster.kubernetes.api.config import ClusterAccess
    from fairlead.cluster.kubernetes.client import user_client
    from fairlead.cluster.kubernetes.client.user_client import UserClient
    from fairlead.cluster.listing import PagedClient
    from fairlead.control import opening
else:
    api_client = deferred("fairlead.cluster.kubernetes.api.client")
    config = deferred("fairlead.cluster.kubernetes.api.config")
    user_client = deferred("fairlead.cluster.kubernetes.client.user_client")
    opening = deferred("fairlead.control.opening")

LOCAL, KUBERNETES = "local", "kubernetes"
VARIABLES = {"cluster": "FAIRLEAD_CLUSTER", "context": "FAIRLEAD_CONTEXT", "namespace": "FAIRLEAD_NAMESPACE"}

_NAMESPACE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The selected cluster.

    Attributes:
        context: Context of the kubeconfig; None for the current one, or the cluster that this process runs in.
        namespace: None for that of the context.
        options: Options from the command line, for suggested commands; variables apply to those anyway.
    """

    cluster: str = LOCAL
    context: str | None = None
    namespace: str | None = None
    options: tuple[str, ...] = ()

    @property
    def is_kubernetes(self) -> bool:
        return self.cluster == KUBERNETES

    def open(self, *, is_to_submit: bool = False) -> "ClusterClient":
        """Open the cluster and start its loop if that is local; print warnings of a missing loop or another problem.

        Args:
            is_to_submit: Raise if the cluster has a problem, instead of a warning.

        Raises:
            ClusterError: It cannot be reached, or has a problem.
        """
        cluster = self.quietly()
        cluster.nudge()
        trouble = cluster.trouble()
        if trouble is not None and is_to_submit:
            raise ClusterError(trouble)
        for warning in (cluster.unattended(), trouble):
            if warning is not None:
                message(f"fairlead: {warning}")
        return cluster

    def quietly(self) -> "ClusterClient":
        """Open the cluster without checking its loop."""
        return self.of_context() if self.is_kubernetes else opening.open_local()

    def of_context(self) -> "UserClient":
        """Open the Kubernetes cluster without checking its loop."""
        import logging

        # Commands report errors of watch threads themselves, once and in a sentence.
        logging.getLogger("fairlead.cluster").setLevel(logging.ERROR)
        return opening.open_kubernetes(context=self.context, namespace=self.namespace, options=self.options)

    def paged(self) -> "PagedClient":
        """Open the cluster for a long-lived reader: it watches for changes and answers from its cache."""
        if not self.is_kubernetes:
            local = opening.open_local()
            local.store.limit_cache()
            return local
        cluster = self.of_context()
        cluster.wait(0.0)
        return cluster

    def access(self) -> "ClusterAccess":
        """Return the access to the Kubernetes cluster, with the selected namespace.

        Raises:
            ClusterError: The context does not exist or cannot be used.
        """
        from dataclasses import replace

        access = config.find_access(context=self.context)
        return access if self.namespace is None else replace(access, namespace=self.namespace)

    def client(self) -> "Client":
        """Return a client of the Kubernetes cluster, with limits for an interactive command."""
        return api_client.Client(self.access(), user_client.PERSONAL)


def cluster_options(command: Command) -> Command:
    """Add ``--cluster``, ``--context`` and ``--namespace``; the function gets ``target: Target``."""
    return _with_options(command, [_CLUSTER, _CONTEXT, _NAMESPACE])


def kubernetes_options(command: Command) -> Command:
    """Add ``--context`` and ``--namespace`` for Kubernetes alone; ``target`` is a Kubernetes cluster."""
    return _with_options(command, [_CONTEXT, _NAMESPACE])


def target_of(values: Mapping[str, str | None], option_names: frozenset[str]) -> Target:
    """Return the cluster that options and variables select; options take precedence over the environment.

    Args:
        values: Values of ``cluster``, ``context`` and ``namespace``; an empty text counts as unset.
        option_names: Those given on the command line.

    Raises:
        click.UsageError: They contradict each other.
    """
    context, namespace = values.get("context") or None, values.get("namespace") or None
    cluster = values.get("cluster") or None
    if namespace is not None and not _NAMESPACE_NAME.fullmatch(namespace):
        raise click.UsageError(
            f"{_say('namespace', option_names)} {namespace!r}: a namespace has small letters, digits and - in its name."
        )
    named = {name for name, value in (("context", context), ("namespace", namespace)) if value is not None}
    if cluster == LOCAL and named:
        if "cluster" in option_names and not named & option_names:
            return Target()
        if "cluster" in option_names or not named & option_names:
            first = "context" if "context" in named else "namespace"
            raise click.UsageError(
                f"{_say('cluster', option_names)} is {LOCAL}, and {_say(first, option_names)} is {values[first]!r}, "
                f"which only Kubernetes has: give one of them, or {KUBERNETES} as the cluster."
            )
        cluster = None
    is_kubernetes = cluster == KUBERNETES or bool(named)
    if not is_kubernetes:
        return Target()
    options = tuple(f"--{name}={values[name]}" for name in VARIABLES if name in option_names and values.get(name))
    return Target(cluster=KUBERNETES, context=context, namespace=namespace, options=options)


def target_in(context: click.Context) -> Target:
    """Return the cluster that the parsed options of a command line select; also for completion."""
    known = {name for name in VARIABLES if name in context.params}
    option_names = frozenset(
        name for name in known if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    values = {name: context.params[name] for name in known}
    if any(parameter.name == "cluster" for parameter in context.command.params):
        return target_of(values, option_names)
    return target_of({**values, "cluster": KUBERNETES}, option_names)


def _with_options(command: Command, options: list[Callable[[Command], Command]]) -> Command:
    @wraps(command)
    def with_target(**parameters: Any) -> Any:
        target = target_in(click.get_current_context())
        own = {name: value for name, value in parameters.items() if name not in VARIABLES}
        try:
            return command(target=target, **own)
        except FairleadError as error:
            options = " ".join(target.options)
            error.args = tuple(
                suggest(argument, options) if isinstance(argument, str) else argument for argument in error.args
            )
            raise

    decorated: Any = with_target
    for option in reversed(options):
        decorated = option(decorated)
    result: Command = decorated
    return result


def _say(name: str, option_names: frozenset[str]) -> str:
    return f"--{name}" if name in option_names else VARIABLES[name]


class _Cluster(click.Choice[str]):
    """The choice of cluster; an error names the variable if the value comes from there."""

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
