"""What an account asked of an API server, out of the audit log, beside what its roles let it ask."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Right:
    """A verb on a resource; `pods/log` is a subresource."""

    group: str
    resource: str
    verb: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and whether the roles allowed it; None where nobody asked them."""

    right: Right
    allowed: bool | None
    uri: str


def rights(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """What rules of a role grant."""
    return {
        Right(group=group, resource=resource, verb=verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def requests(log: Path, *accounts: str) -> Iterator[Asked]:
    """The requests of service accounts, each `namespace:name`."""
    names = {f"system:serviceaccount:{account}" for account in accounts}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        # A watch is told of twice, when it begins and when it ends.
        if event["user"].get("username") not in names or "objectRef" not in event:
            continue
        of = event["objectRef"]
        resource = of["resource"] + (f"/{of['subresource']}" if "subresource" in of else "")
        decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
        right = Right(group=of.get("apiGroup", ""), resource=resource, verb=event["verb"])
        yield Asked(right=right, allowed=None if decision is None else decision == "allow", uri=event["requestURI"])


def token_of(client: Client, namespace: str, name: str) -> str:
    """What a pod of a service account has; the account is made if it is not there."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    try:
        client.create(path, {"metadata": {"name": name}})
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
    wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86_400}}
    return str(client.create(f"{path}/{name}/token", wish)["status"]["token"])


RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
"""Labels of a namespace that takes no pod which could harm its node."""
