"""Checks the user's rights on the API server before anything is tried."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.errors import NotAllowed
from fairlead.frozen import dataclass

AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A verb on a resource.

    Attributes:
        group: API group; empty for the core one.
        resource: Plural, with its subresource as in ``pods/log``.
        namespace: None for the whole cluster.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str | None = None

    def __str__(self) -> str:
        name, slash, part = self.resource.partition("/")
        where = "" if self.namespace is None else f" in namespace {self.namespace}"
        return f"{self.verb} {name}{f'.{self.group}' if self.group else ''}{slash}{part}{where}"


def missing(client: Client, rights: Iterable[Right], *, patience_s: float | None = None) -> list[Right]:
    """Return the rights that the user does not have, in the order given.

    Raises:
        ClusterError: The API server does not answer, or does not support access reviews.
    """
    distinct = list(dict.fromkeys(rights))
    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="rights") as pool:
        allowed = pool.map(lambda right: _is_allowed(client, right, patience_s), distinct)
        return [right for right, is_allowed in zip(distinct, allowed, strict=True) if not is_allowed]


def require(client: Client, rights: Iterable[Right], *, to: str) -> None:
    """Refuse an action for which the user lacks rights, before anything is changed.

    Raises:
        NotAllowed: Rights are missing; the message lists all of them.
    """
    lacking = missing(client, rights)
    if lacking:
        raise NotAllowed(
            f"{who_am_i(client)} lacks the rights to {to} in context {client.access.context!r}: may not "
            f"{say(lacking)}. Nothing was changed. Ask for these rights, or use a context of an administrator."
        )


def say(rights: Iterable[Right]) -> str:
    """Return the rights as text, with the verbs of one resource together."""
    together: dict[Right, list[str]] = {}
    for right in rights:
        bare = Right(verb="", resource=right.resource, group=right.group, namespace=right.namespace)
        together.setdefault(bare, []).append(right.verb)
    return "; ".join(f"{', '.join(verbs)}{bare}" for bare, verbs in together.items())


def who_am_i(client: Client) -> str:
    """Return the name by which the API server identifies the user."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except ApiError:  # Kubernetes allows this to every user, but some distributions do not
        return "the user"
    return str((answer.get("status") or {}).get("userInfo", {}).get("username") or "the user")


def _is_allowed(client: Client, right: Right, patience_s: float | None) -> bool:
    name, _, part = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": name, "subresource": part}
    if right.namespace is not None:
        attributes["namespace"] = right.namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = client.request("POST", path, review, patience_s=patience_s)
    return bool((answer.get("status") or {}).get("allowed"))
