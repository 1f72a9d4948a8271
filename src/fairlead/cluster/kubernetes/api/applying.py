"""Objects that are put onto a cluster as they are rendered, and what that changed."""

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fairlead.cluster.kubernetes.api.client import APPLY, MANAGER, ApiError, Client, Object
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

LOOK_S = 0.2
_UNSCOPED = frozenset({"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass"})
_PLURALS = {"NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses"}


class Outcome(StrEnum):
    """The outcome of applying an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    LEFT = "left as it is"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place that the API server has for an object.

    Attributes:
        resource: Plural.
        namespace: None for what is in none.
    """

    group: str
    version: str
    resource: str
    name: str
    namespace: str | None = None

    @property
    def path(self) -> str:
        """Of the object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = "" if self.namespace is None else f"/namespaces/{self.namespace}"
        return f"{root}{where}/{self.resource}/{self.name}"

    def __str__(self) -> str:
        where = "" if self.namespace is None else f" in {self.namespace}"
        return f"{self.resource}{f'.{self.group}' if self.group else ''}/{self.name}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One object and what became of it; ``why`` only where that is no matter of course."""

    place: Place
    outcome: Outcome
    why: str = ""


def place_of(content: Object) -> Place:
    """Find where an object of ours belongs."""
    group, slash, version = str(content["apiVersion"]).rpartition("/")
    kind, metadata = str(content["kind"]), content["metadata"]
    return Place(
        group=group if slash else "",
        version=version,
        resource=_PLURALS.get(kind, f"{kind.lower()}s"),
        name=str(metadata["name"]),
        namespace=None if kind in _UNSCOPED else str(metadata["namespace"]),
    )


def put(client: Client, content: Object, *, dry: bool = False) -> Outcome:
    """Server-side apply of one object; with ``dry`` the server only says what it would do.

    Raises:
        ApiError: It was refused.
    """
    place = place_of(content)
    before = find(client, place)
    if before is None and dry and place.namespace is not None:
        # The namespace may be one that is not created either, and then the server could not say.
        return Outcome.CREATED
    query = {
        "fieldManager": MANAGER,
        "force": "true",
        "fieldValidation": "Strict",
        **({"dryRun": "All"} if dry else {}),
    }
    after = client.request("PATCH", place.path, content, query=query, content_type=APPLY)
    if before is None:
        return Outcome.CREATED
    return Outcome.UNCHANGED if _told(before) == _told(after) else Outcome.CHANGED


def find(client: Client, place: Place) -> Object | None:
    """The object that is there; None for none."""
    try:
        return client.get(place.path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def remove(client: Client, place: Place, *, foreground: bool = False) -> bool:
    """Delete; whether there was something."""
    policy = "Foreground" if foreground else "Background"
    try:
        client.delete(place.path, {"propagationPolicy": policy})
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True


def until(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Look again and again; whether it came to be in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def await_established(client: Client, places: list[Place], timeout_s: float) -> None:
    """Wait until the API server serves the kinds of these definitions.

    Raises:
        ClusterError: It does not, and why.
    """
    for place in places:
        seen: list[Object] = []

        def is_established(place: Place = place, seen: list[Object] = seen) -> bool:
            seen[:] = [client.get(place.path)]
            return condition(seen[0], "Established").get("status") == "True"

        if not until(is_established, timeout_s):
            refused = condition(seen[0], "NamesAccepted")
            said = refused.get("message") if refused.get("status") == "False" else "it does not say why"
            raise ClusterError(f"{place} is not served after {timeout_s:g} s: {said}.")


def condition(content: Object, kind: str) -> Mapping[str, Any]:
    """A condition of an object's status; empty when it has none of that type."""
    found: Mapping[str, Any]
    for found in (content.get("status") or {}).get("conditions") or ():
        if found.get("type") == kind:
            return found
    return {}


def _told(content: Object) -> Object:
    """Keep what somebody means to be so: a dry run counts versions like a real one, and nobody means those."""
    kept = {name: value for name, value in content.items() if name != "status"}
    own = ("resourceVersion", "managedFields", "generation", "creationTimestamp", "uid", "selfLink")
    metadata = {name: value for name, value in (content.get("metadata") or {}).items() if name not in own}
    return {**kept, "metadata": metadata}
