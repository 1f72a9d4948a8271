"""Opens the cluster that a user selects. Imports Kubernetes modules only for a Kubernetes cluster."""

from typing import TYPE_CHECKING

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.deferred import deferred
from fairlead.errors import NotAllowed

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.api import client as api_client
    from fairlead.cluster.kubernetes.api import config, credentials
    from fairlead.cluster.kubernetes.api.config import ClusterAccess
    from fairlead.cluster.kubernetes.client import user_client
    from fairlead.cluster.kubernetes.client.user_client import UserClient
else:
    api_client = deferred("fairlead.cluster.kubernetes.api.client")
    config = deferred("fairlead.cluster.kubernetes.api.config")
    credentials = deferred("fairlead.cluster.kubernetes.api.credentials")
    user_client = deferred("fairlead.cluster.kubernetes.client.user_client")

TOKEN_S = 10.0


def open_local() -> LocalCluster:
    """Open the local cluster, with its state in FAIRLEAD_HOME."""
    return LocalCluster.open()


def open_kubernetes(
    *, context: str | None = None, namespace: str | None = None, options: tuple[str, ...] = ()
) -> "UserClient":
    """Open a cluster of the kubeconfig with its user's permissions.

    Args:
        context: None for the current one, or the cluster that this process runs in.
        namespace: Namespace of the runs; None for that of the context.
        options: Command-line options that select this cluster, repeated in suggested commands.

    Raises:
        ClusterError: The context does not exist or cannot be used.
    """
    access = config.find_access(context=context)
    is_given = namespace is not None
    return user_client.UserClient(
        api_client.Client(access, user_client.PERSONAL),
        namespace=namespace or access.namespace,
        is_told=is_given,
        options=options,
    )


def open_named(context: str | None, namespace: str | None) -> ClusterClient:
    """Open the local cluster, unless a context or a namespace is named."""
    if context is None and namespace is None:
        return open_local()
    return open_kubernetes(context=context, namespace=namespace)


class TokenAccess:
    """Opens the cluster of a context, or the one that this process runs in, with tokens of other users.

    Permissions of the context or of the process itself are not used.

    Raises:
        ClusterError: The context does not exist or cannot be used.
    """

    def __init__(self, *, context: str | None = None) -> None:
        self._access = config.find_access(context=context)

    def name(self, token: str) -> str:
        """Return the user name that the API server has for a token.

        Raises:
            NotAllowed: The server rejects the token.
            ClusterError: The server cannot be reached.
        """
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        client = api_client.Client(self._with(token))
        try:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            answer = client.request("POST", path, review, patience_s=TOKEN_S)
        except api_client.ApiError as error:
            if error.status != 401:
                raise
            raise NotAllowed("The cluster does not know this token, or not any more.") from error
        finally:
            client.close()
        return str((answer.get("status") or {}).get("userInfo", {}).get("username") or "")

    def open(self, token: str, namespace: str) -> "UserClient":
        """Open the cluster with the permissions of a token's owner.

        Args:
            namespace: If empty, that of a service account, and ``default`` for any other user.
        """
        if not namespace:
            account = self.name(token).removeprefix("system:serviceaccount:").split(":")
            namespace = account[0] if len(account) == 2 else "default"
        cluster = user_client.UserClient(
            api_client.Client(self._with(token), user_client.PERSONAL), namespace=namespace, is_told=True
        )
        cluster.wait(0.0)
        return cluster

    def _with(self, token: str) -> "ClusterAccess":
        from dataclasses import replace

        return replace(self._access, credentials=credentials.FixedToken(token), certificate=None, impersonate=())
