"""The cluster that a person means, opened. Nothing of Kubernetes is imported unless it is meant."""

from typing import TYPE_CHECKING

from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.errors import NotAllowed

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.api.config import Access
    from fairlead.cluster.kubernetes.client.user_client import UserClient

TOKEN_S = 10.0


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


class TokenAccess:
    """The cluster of a context, or the one that this process runs in, with tokens that others bring.

    Nothing that the context or the process itself may do is used.

    Raises:
        ClusterError: There is no such context, or it cannot be used.
    """

    def __init__(self, *, context: str | None = None) -> None:
        from fairlead.cluster.kubernetes.api.config import find_access

        self._access = find_access(context=context)

    def name(self, token: str) -> str:
        """The name under which the API server knows a token.

        Raises:
            NotAllowed: It knows none.
            ClusterError: It cannot be asked.
        """
        from fairlead.cluster.kubernetes.api.client import ApiError, Client

        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        client = Client(self._with(token))
        try:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            answer = client.request("POST", path, review, patience_s=TOKEN_S)
        except ApiError as error:
            if error.status != 401:
                raise
            raise NotAllowed("The cluster does not know this token, or not any more.") from error
        finally:
            client.close()
        return str((answer.get("status") or {}).get("userInfo", {}).get("username") or "")

    def open(self, token: str, namespace: str) -> "UserClient":
        """The cluster as the owner of a token may see it.

        Args:
            namespace: Empty for that of a service account, and ``default`` for anybody else.
        """
        from fairlead.cluster.kubernetes.api.client import Client
        from fairlead.cluster.kubernetes.client.user_client import PERSONAL, UserClient

        if not namespace:
            account = self.name(token).removeprefix("system:serviceaccount:").split(":")
            namespace = account[0] if len(account) == 2 else "default"
        cluster = UserClient(Client(self._with(token), PERSONAL), namespace=namespace, is_told=True)
        cluster.wait(0.0)
        return cluster

    def _with(self, token: str) -> "Access":
        from dataclasses import replace

        from fairlead.cluster.kubernetes.api.credentials import FixedToken

        return replace(self._access, credentials=FixedToken(token), certificate=None, impersonate=())
