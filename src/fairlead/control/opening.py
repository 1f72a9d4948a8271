"""The cluster that a person means, opened. Nothing of Kubernetes is imported unless it is meant."""

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.cluster import LocalCluster


def open_local() -> LocalCluster:
    """This machine, with the state where FAIRLEAD_HOME says."""
    return LocalCluster.open()


def open_kubernetes(
    *, context: str | None = None, namespace: str | None = None, options: tuple[str, ...] = ()
) -> ClusterClient:
    """A cluster of the kubeconfig, as its user may see it.

    Args:
        context: None for the current one, or for the cluster that this process runs in.
        namespace: Whose runs are meant; None for that of the context.
        options: Those of the command line that say so, for commands that are told to people.

    Raises:
        ClusterError: There is no such context, or it cannot be used.
    """
    from fairlead.cluster.kubernetes.api.client import Client
    from fairlead.cluster.kubernetes.api.config import find_access
    from fairlead.cluster.kubernetes.client.user_client import PERSONAL, UserClient

    access = find_access(context=context)
    told = namespace is not None
    return UserClient(Client(access, PERSONAL), namespace=namespace or access.namespace, is_told=told, options=options)


def open_named(context: str | None, namespace: str | None) -> ClusterClient:
    """This machine, unless a context or a namespace is named."""
    if context is None and namespace is None:
        return open_local()
    return open_kubernetes(context=context, namespace=namespace)
