"""Applies rendered objects to a cluster and reports the changes."""

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fairlead.cluster.kubernetes.api.client import APPLY, MANAGER, ApiError, Client, Object
from fairlead.cluster.kubernetes.names import segment
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

LOOK_S = 0.2
_UNSCOPED = frozenset(
    {
        "Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass",
        "ClusterPropagationPolicy", "ResourceInterpreterCustomization", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)  # fmt: skip
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "PriorityClass": "priorityclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ClusterPropagationPolicy": "clusterpropagationpolicies",
}


class ApplyOutcome(StrEnum):
    """The outcome of applying an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    LEFT = "left as it is"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPath:
    """The location of an object on the API server.

    Attributes:
        resource: Plural of the kind.
        namespace: None for a cluster-scoped object.
    """

    group: str
    version: str
    resource: str
    name: str
    namespace: str | None = None

    @property
    def path(self) -> str:
        """Path of the object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = "" if self.namespace is None else f"/namespaces/{segment(self.namespace)}"
        return f"{root}{where}/{self.resource}/{self.name}"

    def __str__(self) -> str:
        where = "" if self.namespace is None else f" in {self.namespace}"
        return f"{self.resource}{f'.{self.group}' if self.group else ''}/{self.name}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One object and its outcome; ``why`` only if the outcome needs a reason."""

    place: ObjectPath
    outcome: ApplyOutcome
    why: str = ""


def place_of(content: Object) -> ObjectPath:
    """Return the location of one of Fairlead's objects."""
    group, slash, version = str(content["apiVersion"]).rpartition("/")
    kind, metadata = str(content["kind"]), content["metadata"]
    return ObjectPath(
        group=group if slash else "",
        version=version,
        resource=_PLURALS.get(kind, f"{kind.lower()}s"),
        name=str(metadata["name"]),
        namespace=None if kind in _UNSCOPED else str(metadata["namespace"]),
    )


def put(client: Client, content: Object, *, dry: bool = False) -> ApplyOutcome:
    """Apply one object server-side; with ``dry`` the server only reports what it would do.

    Raises:
        ApiError: The server refused the object.
    """
    place = place_of(content)
    before = find(client, place)
    if before is None and dry and place.namespace is not None:
        # The namespace may not exist yet either, in which case the server could not answer.
        return ApplyOutcome.CREATED
    query = {
        "fieldManager": MANAGER,
        "force": "true",
        "fieldValidation": "Strict",
        **({"dryRun": "All"} if dry else {}),
    }
    after = client.request("PATCH", place.path, content, query=query, content_type=APPLY)
    if before is None:
        return ApplyOutcome.CREATED
    is_same = _without_server_fields(before) == _without_server_fields(after)
    return ApplyOutcome.UNCHANGED if is_same else ApplyOutcome.CHANGED


def find(client: Client, place: ObjectPath) -> Object | None:
    """Return the object at a location; None if there is none."""
    try:
        return client.get(place.path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def remove(client: Client, place: ObjectPath, *, foreground: bool = False) -> bool:
    """Delete an object and return whether it existed."""
    policy = "Foreground" if foreground else "Background"
    try:
        client.delete(place.path, {"propagationPolicy": policy})
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def until(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Poll a condition until it holds, and return whether it did so in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def await_established(client: Client, places: list[ObjectPath], timeout_s: float) -> None:
    """Wait until the API server serves the kinds of these definitions.

    Raises:
        ClusterError: A kind is not served in time; the message has the reason.
    """
    for place in places:
        seen: list[Object] = []

        def is_established(place: ObjectPath = place, seen: list[Object] = seen) -> bool:
            seen[:] = [client.get(place.path)]
            return condition(seen[0], "Established").get("status") == "True"

        if not until(is_established, timeout_s):
            refused = condition(seen[0], "NamesAccepted")
            message = refused.get("message") if refused.get("status") == "False" else "it does not say why"
            raise ClusterError(f"{place} is not served after {timeout_s:g} s: {message}.")


def condition(content: Object, kind: str) -> Mapping[str, Any]:
    """Return a condition of an object's status; empty if it has none of that type."""
    entry: Mapping[str, Any]
    for entry in (content.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return entry
    return {}


def _without_server_fields(content: Object) -> Object:
    """Return the object without fields that the server sets, such as versions, which a dry run changes too."""
    body = {name: value for name, value in content.items() if name != "status"}
    own = ("resourceVersion", "managedFields", "generation", "creationTimestamp", "uid", "selfLink")
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in own}
    return {**body, "metadata": metadata}
