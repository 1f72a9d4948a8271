"""Installs Fairlead on a cluster: applies the rendered objects in order; repeating it changes nothing."""

from collections.abc import Callable
from typing import Any

from fairlead.cluster.kubernetes.api.applying import (
    ApplyOutcome,
    Done,
    ObjectPath,
    await_established,
    condition,
    find,
    place_of,
    put,
    until,
)
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.client.permissions import Right, require, who_am_i
from fairlead.cluster.kubernetes.manifests.crds import with_fewer_rules
from fairlead.cluster.kubernetes.manifests.install import VERSION, InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.karmada import render_karmada
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.names import MANAGED_BY, MANAGER, segment
from fairlead.errors import ClusterError, Conflict, NotAllowed

ESTABLISHED_S = 30.0
Tell = Callable[[Done], None]
BINDING = ObjectPath(group="rbac.authorization.k8s.io", version="v1", resource="clusterrolebindings", name=OPERATOR)


_UPGRADE = (
    "Write a chart with `fairlead install --chart CHART` and give it to `helm upgrade {release} CHART`, or go over to "
    "`fairlead install` with `helm uninstall {release}` first, which leaves runs and kinds."
)


def installed_image(client: Client, namespace: str, version: str) -> str | None:
    """Return the image of the operator that is installed; None without one of this version, or if it is not visible."""
    place = ObjectPath(group="apps", version="v1", resource="deployments", name=OPERATOR, namespace=namespace)
    try:
        deployment = find(client, place)
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    if deployment is None or (deployment["metadata"].get("labels") or {}).get(VERSION) != version:
        return None
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def install(
    client: Client, settings: InstallSettings, *, tell: Tell, dry: bool = False, has_image: bool = True
) -> list[Done]:
    """Apply all objects, and report each once it is applied.

    A namespace that existed before Fairlead is left unchanged. With ``dry`` the API server only reports what it would
    do.

    Args:
        has_image: The image of the settings is one that somebody named, so that nodes can pull it.

    Raises:
        NotAllowed: Rights are missing; nothing was changed.
        Conflict: Fairlead is in another namespace of this cluster, or Helm installed it, or pods would have no image.
        ClusterError: The API server refused an object; those reported before it are applied.
    """
    objects = render_install(settings)
    _check_extras(client, settings)
    require(client, _needed(objects), to="install Fairlead")
    check_not_by_helm(client, instead=_UPGRADE)
    _check_place(client, settings)
    _check_grants(client, objects)
    if not has_image and not dry and (settings.replicas or settings.page or settings.gateways):
        raise Conflict(
            f"No image of Fairlead {settings.version} is named, and none is installed; {settings.image} is on no "
            "public registry. Give --image-to REGISTRY/NAME to build one and push it there, or --image with one; "
            "or --replicas 0, and start the operator elsewhere with `fairlead operator`. Nothing was changed."
        )
    return _apply_all(client, objects, tell=tell, dry=dry)


def install_on_karmada(client: Client, *, tell: Tell, dry: bool = False) -> list[Done]:
    """Apply what a control plane of Karmada needs to give runs to its clusters, and report each object.

    Raises:
        NotAllowed: Rights are missing; nothing was changed.
        ClusterError: The API server refused an object; those reported before it are applied.
    """
    objects = render_karmada()
    require(client, _needed(objects), to="install Fairlead on Karmada")
    _check_grants(client, objects)
    return _apply_all(client, objects, tell=tell, dry=dry)


def _apply_all(client: Client, objects: list[Object], *, tell: Tell, dry: bool) -> list[Done]:
    done = []
    for content in objects:
        one = _apply(client, content, dry=dry)
        done.append(one)
        tell(one)
        if not dry and content["kind"] == "CustomResourceDefinition":
            await_established(client, [one.place], ESTABLISHED_S)
    return done


def installed_in(client: Client) -> str | None:
    """Return the namespace of the installed operator; None if there is none, or if the user may not see it."""
    subjects = _binding(client).get("subjects") or ()
    return next((str(subject["namespace"]) for subject in subjects if subject.get("name") == OPERATOR), None)


def check_not_by_helm(client: Client, *, instead: str) -> None:
    """Refuse to change objects of a Helm release, whose next upgrade would revert the change.

    Args:
        instead: The remedy, with {release} for the release's name and namespace option.

    Raises:
        Conflict: The installation belongs to a release; nothing was changed.
    """
    annotations = _binding(client).get("metadata", {}).get("annotations") or {}
    release, namespace = (annotations.get(f"meta.helm.sh/release-{of}") for of in ("name", "namespace"))
    if release is not None:
        raise Conflict(
            f"Helm's release {release} in namespace {namespace} owns what is installed here. "
            + instead.format(release=f"{release} --namespace {namespace}")
        )


def _binding(client: Client) -> Object:
    """Return the operator's binding; empty if there is none, or if the user may not see it."""
    try:
        return find(client, BINDING) or {}
    except ApiError as error:
        if error.status != 403:
            raise
        return {}


def await_operator(client: Client, namespace: str, timeout_s: float) -> None:
    """Wait until the newest version of the operator is ready, on every replica.

    Raises:
        ClusterError: It is not ready in time; the message has the reason from its pods.
    """
    place = ObjectPath(group="apps", version="v1", resource="deployments", name=OPERATOR, namespace=namespace)

    def is_ready() -> bool:
        return _is_rolled_out(client.get(place.path))

    if not until(is_ready, timeout_s):
        raise ClusterError(
            f"The operator is not ready after {timeout_s:g} s: {_why_not_ready(client, place, namespace)}. "
            f"Look with `kubectl -n {namespace} describe pods`, then `fairlead install` again with what is to change."
        )


def _needed(objects: list[Object]) -> list[Right]:
    """Return the needed rights: applying a new object needs the verbs patch and create."""
    places = [place_of(content) for content in objects]
    return [
        Right(verb=verb, group=place.group, resource=place.resource, namespace=place.namespace)
        for place in places
        for verb in ("get", "create", "patch")
    ]


def _check_extras(client: Client, settings: InstallSettings) -> None:
    """Check that API groups of other components exist, before anything is changed."""
    for group in sorted({place.group for place in map(place_of, settings.extras) if "." in place.group}):
        try:
            client.get(f"/apis/{group}")
        except ApiError as error:
            if error.status != 404:
                raise
            raise ClusterError(
                f"This cluster does not know the kinds of {group}. Install what defines them first, or leave out "
                "--monitoring; `fairlead metrics rules` and `fairlead metrics dashboards` give the same as files."
            ) from error


def _check_place(client: Client, settings: InstallSettings) -> None:
    other = installed_in(client)
    if other not in (None, settings.namespace):
        raise Conflict(
            f"Fairlead is installed in namespace {other} of this cluster. Give `--namespace {other}` to renew it "
            "there, or `fairlead uninstall` first."
        )
    space = client_namespace(client, settings.namespace)
    if space is not None and (space["metadata"].get("deletionTimestamp") is not None):
        raise Conflict(f"Namespace {settings.namespace} is being deleted; install when it is gone.")


def client_namespace(client: Client, name: str) -> Object | None:
    """Return the Namespace object; None if there is none."""
    return find(client, ObjectPath(group="", version="v1", resource="namespaces", name=name))


def _check_grants(client: Client, objects: list[Object]) -> None:
    """Check by a dry run that the user may grant the rights, which only the API server can decide."""
    for content in objects:
        if content["kind"] != "ClusterRole":
            continue
        try:
            put(client, content, dry=True)
        except ApiError as error:
            if error.status != 403:
                raise
            raise NotAllowed(
                f"{who_am_i(client)} may not give the rights of {content['metadata']['name']}: {error.server_message}. "
                "Nothing was changed. Use a context that has these rights, or the verb `escalate` on clusterroles."
            ) from error


def _apply(client: Client, content: Object, *, dry: bool) -> Done:
    place = place_of(content)
    if content["kind"] == "Namespace":
        existing = find(client, place)
        if existing is not None and not is_ours(existing):
            return Done(place=place, outcome=ApplyOutcome.LEFT, why="it existed before Fairlead")
    try:
        return Done(place=place, outcome=put(client, content, dry=dry))
    except ApiError as error:
        if content["kind"] != "CustomResourceDefinition" or error.status != 422 or "cost" not in error.server_message:
            raise ClusterError(f"{place} was refused: {error.server_message or error}") from error
    why = "without the rules above the cost limit of this API server; the operator checks them instead"
    return Done(place=place, outcome=put(client, with_fewer_rules(content), dry=dry), why=why)


def is_ours(content: Object) -> bool:
    """Return whether Fairlead created the object."""
    return bool((content["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER)


def _is_rolled_out(deployment: Object) -> bool:
    wanted, status = deployment["spec"].get("replicas", 1), deployment.get("status") or {}
    is_current = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return is_current and counts == [wanted] * 3


def _why_not_ready(client: Client, place: ObjectPath, namespace: str) -> str:
    """Return the reason given by the pods or the Deployment."""
    query = {"labelSelector": f"app.kubernetes.io/name={OPERATOR}"}
    for pod in client.items(f"/api/v1/namespaces/{segment(namespace)}/pods", query):
        status = pod.get("status") or {}
        for container in status.get("containerStatuses") or ():
            waiting: dict[str, Any] = (container.get("state") or {}).get("waiting") or {}
            if waiting:
                return (
                    f"{pod['metadata']['name']} waits, {waiting.get('reason')}: {waiting.get('message') or ''}".strip()
                )
        unscheduled = condition(pod, "PodScheduled")
        if unscheduled.get("status") == "False":
            return f"{pod['metadata']['name']} has no node: {unscheduled.get('message')}".rstrip(".")
    failed = condition(client.get(place.path), "ReplicaFailure")
    return str(failed.get("message") or "its pods are starting")
