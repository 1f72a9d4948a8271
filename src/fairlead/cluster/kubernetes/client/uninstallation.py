"""Uninstalls Fairlead from a cluster: only objects that are still in use remain, and these are reported."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fairlead.cluster.kubernetes.api.applying import ApplyOutcome, Done, ObjectPath, find, place_of, remove, until
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.client.installation import check_not_by_helm, client_namespace, is_ours
from fairlead.cluster.kubernetes.client.operator_lease import holder_of
from fairlead.cluster.kubernetes.client.permissions import Right, require
from fairlead.cluster.kubernetes.kinds import kept_kinds, objects_path, plural, workload_kinds
from fairlead.cluster.kubernetes.manifests.crds import GROUP, definitions
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.install import USER, InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.karmada import render_dispatch
from fairlead.cluster.kubernetes.manifests.page import render_page
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR, render_node_partitioner
from fairlead.cluster.kubernetes.names import (
    CONTENT,
    COSTS,
    GATEWAY_NAMESPACE,
    MANAGED_BY,
    MANAGER,
    ROOM_FOR,
    RUN,
    RUN_UID,
    segment,
)
from fairlead.cluster.kubernetes.workloads.run_record import FINALIZER
from fairlead.errors import ClusterError
from fairlead.text.lists import listed
from fairlead.text.quantities import plural as counted

Tell = Callable[[Done], None]
_BY_HELM = "Use `helm uninstall {release}`; then `fairlead uninstall` removes the kinds, which Helm leaves."
_LABELLED = {"labelSelector": f"{MANAGED_BY}={MANAGER}"}
# Groups and plurals of the objects that belong to runs.
_OF_RUNS = (
    ("", "configmaps"),
    ("", "pods"),
    ("", "services"),
    ("discovery.k8s.io", "endpointslices"),
    ("networking.k8s.io", "networkpolicies"),
)


@dataclass(slots=True, kw_only=True)
class UninstallReport:
    """A report of what was deleted, and what remains and why."""

    done: list[Done] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def uninstall(
    client: Client, namespace: str, *, with_runs: bool, tell: Tell, timeout_s: float, extras: Sequence[Object] = ()
) -> UninstallReport:
    """Remove the objects that ``install`` created, and those that runs left behind.

    A kind remains while there are objects of it, and a role for users while a binding refers to it.

    Args:
        namespace: The operator's namespace.
        with_runs: Delete all runs first, with a stop notice and their grace period.
        timeout_s: Limit for runs to end, and for deleted objects to be gone.
        extras: Further objects that an installation may have; existing ones are deleted.

    Raises:
        NotAllowed: Rights are missing; nothing was changed.
        Conflict: Helm installed it; nothing was changed.
        ClusterError: Runs did not end in time, or an object is not gone in time; calling it again continues.
    """
    existing = tuple(content for content in extras if _is_there(client, place_of(content)))
    pages = tuple(content for content in render_page("", namespace, USER) if _is_there(client, place_of(content)))
    gateways = tuple(content for content in render_gateway("", namespace, USER) if _is_there(client, place_of(content)))
    further = (content for content in render_node_partitioner(namespace) if _is_there(client, place_of(content)))
    dispatch = (content for content in render_dispatch() if _is_there(client, place_of(content)))
    extras = (*existing, *pages, *gateways, *further, *dispatch)
    objects = render_install(InstallSettings(image="", namespace=namespace, extras=extras))
    require(client, _needed(objects), to="uninstall Fairlead")
    check_not_by_helm(client, instead=_BY_HELM)
    report = UninstallReport()

    def did(place: ObjectPath, outcome: ApplyOutcome = ApplyOutcome.DELETED, why: str = "") -> None:
        report.done.append(Done(place=place, outcome=outcome, why=why))
        tell(report.done[-1])

    elsewhere = _operator_elsewhere(client, namespace)
    if with_runs:
        for place in _delete_runs(client, namespace, timeout_s):
            did(place)
    in_use = _in_use(client)
    if not any(in_use.get(plural(kind)) for kind in workload_kinds()):
        for place in _leftovers(client):
            if remove(client, place):
                did(place)
    bound = _bound(client)
    for content in reversed(
        [rendered for rendered in objects if rendered["kind"] not in ("Namespace", "CustomResourceDefinition")]
    ):
        place = place_of(content)
        if content["kind"] == "ClusterRole" and bound.get(place.name):
            did(place, ApplyOutcome.LEFT, f"people are bound to it in {_some(bound[place.name])}")
        elif _removed(client, place, timeout_s):
            did(place)
    lease = ObjectPath(group="coordination.k8s.io", version="v1", resource="leases", name=OPERATOR, namespace=namespace)
    if remove(client, lease):
        did(lease)
    _leave_namespace(client, namespace, did, timeout_s)
    if gateways:
        _leave_namespace(client, GATEWAY_NAMESPACE, did, timeout_s)
    for content in definitions():
        place, num = place_of(content), in_use.get(content["spec"]["names"]["plural"], 0)
        if num:
            did(place, ApplyOutcome.LEFT, f"{counted(num, 'object')} of it would be deleted with it")
        elif _removed(client, place, timeout_s):
            did(place)
    report.left = [*elsewhere, *_remarks(client, in_use)]
    return report


def _is_there(client: Client, place: ObjectPath) -> bool:
    try:
        return find(client, place) is not None
    except ApiError as error:
        if error.status != 403:
            raise
        return False


def _needed(objects: list[Object]) -> list[Right]:
    places = {(place.group, place.resource, place.namespace) for place in map(place_of, objects)}
    more = [
        Right(verb=verb, group=GROUP, resource=plural(kind)) for kind in kept_kinds() for verb in ("list", "delete")
    ]
    return [
        *(Right(verb="delete", group=group, resource=resource, namespace=space) for group, resource, space in places),
        *more,
        *(Right(verb=verb, group=group, resource=kind) for group, kind in _OF_RUNS for verb in ("list", "delete")),
        Right(verb="list", resource="namespaces"),
        Right(verb="list", resource="persistentvolumeclaims"),
        Right(verb="list", group="rbac.authorization.k8s.io", resource="rolebindings"),
    ]


def _operator_elsewhere(client: Client, namespace: str) -> list[str]:
    holder = holder_of(client, namespace)
    if holder is None or holder.name.startswith(f"{OPERATOR}-"):  # a pod of the Deployment
        return []
    return [f"The operator {holder.name} runs outside of this cluster; stop it there."]


def _delete_runs(client: Client, namespace: str, timeout_s: float) -> Iterator[ObjectPath]:
    """Delete every run and every parent; without an operator to stop them, their pods are deleted with them."""
    runs = [_place_of_run(run) for run in _runs(client)]
    for place in runs:
        remove(client, place)

    def are_gone() -> bool:
        if _runs(client) and holder_of(client, namespace) is None:
            for place in runs:
                _let_go(client, place)
        # The garbage collector deletes pods after their owner.
        return not _runs(client) and not _listed(client, "/api/v1/pods", {"labelSelector": RUN_UID})

    if not until(are_gone, timeout_s):
        names = [f"{run['metadata']['namespace']}/{run['metadata']['name']}" for run in _runs(client)]
        raise ClusterError(
            f"{counted(len(names), 'run')} still being stopped after {timeout_s:g} s: {_some(names)}. Nothing else was "
            f"removed; call `fairlead uninstall --with-runs{client.access.option}` again, or give a longer `--timeout`."
        )
    yield from runs


def _let_go(client: Client, place: ObjectPath) -> None:
    """Remove the finalizer that makes a deleted run wait for the operator."""
    content = find(client, place)
    if content is None:
        return
    finalizers = [finalizer for finalizer in content["metadata"].get("finalizers") or () if finalizer != FINALIZER]
    try:
        client.merge(place.path, {"metadata": {"finalizers": finalizers or None, "uid": content["metadata"]["uid"]}})
    except ApiError as error:
        if error.status != 404:
            raise


def _in_use(client: Client) -> dict[str, int]:
    """Return the number of objects of each of Fairlead's kinds, by plural."""
    return {plural(kind): len(_listed(client, objects_path(kind))) for kind in kept_kinds()}


def _leftovers(client: Client) -> Iterator[ObjectPath]:
    """Yield the objects that runs owned or shared.

    The garbage collector removes objects of a deleted run, but not at once, and never if the run's kind is gone too.
    """
    for group, resource in _OF_RUNS:
        every = ObjectPath(group=group, version="v1", resource=resource, name="")
        for content in _listed(client, every.path.rstrip("/"), _LABELLED):
            metadata = content["metadata"]
            if not {CONTENT, RUN, ROOM_FOR}.isdisjoint(metadata["labels"]):
                yield replace(every, name=metadata["name"], namespace=metadata["namespace"])


def _bound(client: Client) -> dict[str, list[str]]:
    """Return the namespaces with a binding to each role, by the role's name."""
    namespaces: dict[str, list[str]] = {}
    for binding in client.items("/apis/rbac.authorization.k8s.io/v1/rolebindings"):
        role = binding["roleRef"]
        if role["kind"] == "ClusterRole" and role["name"].startswith(f"{MANAGER}-"):
            namespaces.setdefault(role["name"], []).append(binding["metadata"]["namespace"])
    return namespaces


def _leave_namespace(client: Client, namespace: str, did: Callable[..., None], timeout_s: float) -> None:
    space = client_namespace(client, namespace)
    if space is None:
        return
    place = ObjectPath(group="", version="v1", resource="namespaces", name=namespace)
    others = [
        f"{path.rpartition('/')[2]}/{content['metadata']['name']}"
        for path in (
            f"/api/v1/namespaces/{segment(namespace)}/pods",
            # a ledger, which is never deleted implicitly
            f"/api/v1/namespaces/{segment(namespace)}/persistentvolumeclaims",
            *(objects_path(kind, namespace) for kind in workload_kinds()),
        )
        for content in _listed(client, path)
        if content["metadata"].get("deletionTimestamp") is None
    ]
    if not is_ours(space):
        did(place, ApplyOutcome.LEFT, "it existed before Fairlead")
    elif others:
        did(place, ApplyOutcome.LEFT, f"others are in it: {_some(others)}")
    elif _removed(client, place, timeout_s):
        did(place)


def _removed(client: Client, place: ObjectPath, timeout_s: float) -> bool:
    """Delete an object, wait until it is gone, and return whether it existed."""
    if not remove(client, place, foreground=place.resource == "deployments"):
        return False
    if not until(lambda: find(client, place) is None, timeout_s):
        raise ClusterError(
            f"{place} is deleted, but not gone after {timeout_s:g} s; something in it waits. "
            "Look at its finalizers and conditions, and call `fairlead uninstall` again."
        )
    return True


def _remarks(client: Client, in_use: dict[str, int]) -> list[str]:
    """Return remarks on what remains, each with the command that removes it."""
    left, here = [], client.access.option
    num_runs = sum(in_use.get(plural(kind), 0) for kind in workload_kinds())
    if num_runs:
        left.append(
            f"Left without an operator: {counted(num_runs, 'run')}; pods keep running. "
            f"`fairlead uninstall --with-runs{here}` deletes runs too."
        )
    left += [
        f"Left: {counted(in_use[f'{noun}s'], noun)}; `kubectl delete {noun}s.{GROUP} --all{here}` deletes all."
        for noun in ("team", "pool")
        if in_use.get(f"{noun}s")
    ]
    costs = _listed(client, "/api/v1/configmaps", {"labelSelector": COSTS})
    if costs:
        left.append(f"The costs of each day stay; `kubectl delete configmaps -A -l {COSTS}{here}` removes them.")
    spaces = [namespace["metadata"]["name"] for namespace in _listed(client, "/api/v1/namespaces", _LABELLED)]
    if spaces:
        left.append(f"The namespaces of teams stay, with all that is in them: {_some(spaces)}.")
    return left


def _runs(client: Client) -> list[Object]:
    """Return the objects of all kinds of workloads."""
    return [{"kind": kind, **run} for kind in workload_kinds() for run in _listed(client, objects_path(kind))]


def _place_of_run(run: Object) -> ObjectPath:
    metadata, resource = run["metadata"], plural(run["kind"])
    return ObjectPath(
        group=GROUP, version="v1alpha1", resource=resource, name=metadata["name"], namespace=metadata["namespace"]
    )


def _listed(client: Client, path: str, query: dict[str, str] | None = None) -> list[Object]:
    """Return the objects of a list; an empty list if the kind is not served."""
    try:
        return list(client.items(path, query))
    except ApiError as error:
        if error.status != 404:
            raise
        return []


def _some(names: list[str], most: int = 5) -> str:
    return listed(sorted(set(names)), most)
