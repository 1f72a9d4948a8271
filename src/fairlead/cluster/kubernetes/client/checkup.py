"""Checks a cluster from a user's view: problems that would block runs there, and their remedies."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fairlead.cluster.findings import Finding
from fairlead.cluster.kubernetes.api.applying import condition
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.resource_slices import are_offered, list_slices
from fairlead.cluster.kubernetes.client.cluster_inventory import Inventory, by_name, look_around
from fairlead.cluster.kubernetes.client.discovery import InstalledOperator, operator_of
from fairlead.cluster.kubernetes.client.operator_lease import in_conflict, leaders, operator_namespaces
from fairlead.cluster.kubernetes.client.permissions import Right, missing, say, who_am_i
from fairlead.cluster.kubernetes.manifests.crds import GROUP, definitions, with_fewer_rules
from fairlead.cluster.kubernetes.manifests.install import VERSION
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.names import segment
from fairlead.errors import ClusterError

OLDEST = (1, 31)
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# The rights that each command needs on the API server.
COMMANDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "status, events, attach": (("get", "trainings", GROUP), ("list", "trainings", GROUP)),
    "logs": (("get", "pods/log", ""), ("list", "pods", "")),
    "run": (("create", "trainings", GROUP), ("create", "configmaps", "")),
    "stop, suspend, resume": (("patch", "trainings", GROUP),),
    "delete": (("delete", "trainings", GROUP),),
    "exec": (("get", "pods/exec", ""), ("create", "pods/exec", "")),
    "port-forward": (("get", "pods/portforward", ""), ("create", "pods/portforward", "")),
}

INSTALL = "fairlead install --image-to REGISTRY/NAME"
"""A command that works on any cluster: no registry has an image of Fairlead for everybody."""


def check(client: Client, version: str) -> list[Finding]:
    """Run all checks, from the connection to the engines; if the connection fails, only that one.

    Args:
        version: Version of this Fairlead, with which the installed one is compared.
    """
    context, namespace = client.access.context, client.access.namespace
    try:
        server = client.get("/version")
        user = who_am_i(client)
    except ClusterError as error:
        remedy = "kubectl config get-contexts, and your provider's command that logs in"
        return [Finding(what="reachable", ok=False, says=str(error), remedy=remedy)]
    reads: list[Callable[[], list[Finding]]] = [
        lambda: [_rights(client, user, namespace)],
        lambda: [_namespace(client, namespace)],
        lambda: [_kinds(client, context, version)],
        lambda: [_operator(operator_of(client), context, version)],
        lambda: _leaders(client),
        lambda: look_around(_read(client)),
    ]
    with ThreadPoolExecutor(max_workers=len(reads), thread_name_prefix="checkup") as pool:
        parts = list(pool.map(lambda read: _guarded(read), reads))
    return [_server(server, client, user), *(finding for part in parts for finding in part)]


def _guarded(read: Callable[[], list[Finding]]) -> list[Finding]:
    """Run one check; a failure to read becomes a finding and does not prevent the other checks."""
    try:
        return read()
    except ClusterError as error:
        return [Finding(what="trouble", ok=False, says=str(error))]


def _server(version: Object, client: Client, user: str) -> Finding:
    git_version = str(version.get("gitVersion") or "?")
    minor = "".join(letter for letter in str(version.get("minor") or "") if letter.isdigit())
    is_old = minor.isdigit() and (int(version.get("major") or 1), int(minor)) < OLDEST
    says = f"Kubernetes {git_version} at {client.access.server}, context {client.access.context}, as {user}"
    if is_old:
        oldest = f"{OLDEST[0]}.{OLDEST[1]}"
        return Finding(what="reachable", ok=False, says=f"{says}: older than {oldest}", remedy="upgrade the cluster")
    return Finding(what="reachable", ok=True, says=says)


def _rights(client: Client, user: str, namespace: str) -> Finding:
    rights = {
        command: [
            Right(verb=verb, resource=resource, group=group, namespace=namespace) for verb, resource, group in needed
        ]
        for command, needed in COMMANDS.items()
    }
    lacking = set(missing(client, [right for needed in rights.values() for right in needed]))
    barred = {
        command: [right for right in needed if right in lacking]
        for command, needed in rights.items()
        if lacking & set(needed)
    }
    if not barred:
        return Finding(what="rights", ok=True, says=f"{user} may use every command in namespace {namespace}")
    says = "; ".join(f"not {command}: may not {say(refused)}" for command, refused in barred.items())
    role = "user" if barred.keys() & {"run", "delete", "stop, suspend, resume"} else "viewer"
    remedy = (
        f"kubectl -n {namespace} create rolebinding fairlead-{role}-{_word(user)} --clusterrole=fairlead-{role} "
        f"--user={user}"
    )
    return Finding(what="rights", ok=False, says=says, remedy=remedy)


def _namespace(client: Client, namespace: str) -> Finding:
    try:
        space = client.get(f"/api/v1/namespaces/{segment(namespace)}")
    except ApiError as error:
        if error.status == 404:
            says, remedy = f"there is no namespace {namespace}", f"kubectl create namespace {namespace}"
            return Finding(what="namespace", ok=False, says=says, remedy=remedy)
        return Finding(what="namespace", ok=True, says=f"{namespace}; your account may not read it")
    if space["metadata"].get("deletionTimestamp"):
        return Finding(what="namespace", ok=False, says=f"{namespace} is being deleted")
    return Finding(what="namespace", ok=True, says=namespace)


def _kinds(client: Client, context: str, version: str) -> Finding:
    install = f"{INSTALL} --context {context}"
    try:
        installed = by_name(client.items(_DEFINITIONS))
    except ApiError as error:
        if error.status != 403:
            raise
        return _served_kinds(client, install)
    wanted = by_name(definitions())
    absent = [name for name in wanted if name not in installed]
    if absent:
        return Finding(what="kinds", ok=False, says=f"not there: {', '.join(absent)}", remedy=install)
    broken = [name for name in wanted if condition(installed[name], "Established").get("status") != "True"]
    if broken:
        return Finding(what="kinds", ok=False, says=f"not served: {', '.join(broken)}", remedy=install)
    differing = [name for name, definition in wanted.items() if not _is_same(installed[name], definition)]
    versions = {str((installed[name]["metadata"].get("labels") or {}).get(VERSION) or "?") for name in wanted}
    if differing:
        says = f"{', '.join(differing)} of version {', '.join(sorted(versions))} differ from those of {version}"
        return Finding(what="kinds", ok=False, says=says, remedy=install)
    return Finding(what="kinds", ok=True, says=f"{', '.join(wanted)}, as version {version} has them")


def _served_kinds(client: Client, install: str) -> Finding:
    try:
        client.get(f"/apis/{GROUP}/v1alpha1")
    except ApiError as error:
        if error.status != 404:
            raise
        return Finding(what="kinds", ok=False, says="not there", remedy=f"{install}, by an administrator")
    return Finding(what="kinds", ok=True, says="served; your account may not read the version")


def _is_same(installed: Object, wanted: Object) -> bool:
    """Return whether the API server has this version's schema, in full or without the rules that cost too much."""
    schema = installed["spec"]["versions"][0]["schema"]
    return any(candidate["spec"]["versions"][0]["schema"] == schema for candidate in (wanted, with_fewer_rules(wanted)))


def _operator(operator: InstalledOperator, context: str, version: str) -> Finding:
    if operator.unknown:
        return Finding(what="operator", ok=True, says=f"not known: {operator.unknown}")
    leads = "" if operator.leader is None else f"{operator.leader.name} leads, heard {operator.leader.age_s:.0f} s ago"
    if operator.leader is not None and operator.leader.policy not in (None, "default"):
        leads = f"{leads}, policy {operator.leader.policy}"
    if operator.leader is not None and operator.leader.trouble:
        namespace = operator.leader.namespace
        remedy = f"kubectl --context {context} -n {namespace} logs deploy/{OPERATOR} | grep -E 'cannot read|watch'"
        return Finding(what="operator", ok=False, says=f"{leads}, but {operator.leader.trouble}", remedy=remedy)
    if operator.version is None:
        if leads:
            return Finding(what="operator", ok=True, says=f"{leads}; it runs outside of the cluster")
        remedy = f"{INSTALL} --context {context}, or for a try fairlead operator --context {context}"
        return Finding(what="operator", ok=False, says="none: runs wait and are not started", remedy=remedy)
    says = f"version {operator.version} in {operator.namespace}, {operator.num_ready} of {operator.replicas} ready"
    look = f"kubectl --context {context} -n {operator.namespace} describe pods"
    if not leads and not operator.replicas:
        says = f"version {operator.version} in {operator.namespace} with 0 replicas, and none runs elsewhere: runs wait"
        remedy = f"fairlead operator --context {context}, or {INSTALL} --replicas 2 --context {context}"
        return Finding(what="operator", ok=False, says=says, remedy=remedy)
    if not leads:
        return Finding(what="operator", ok=False, says=f"{says}, but none is the leader: runs wait", remedy=look)
    if operator.version != version:
        remedy = f"{INSTALL} --context {context}"
        return Finding(what="operator", ok=True, says=f"{says}; {leads}; this is {version}", remedy=remedy)
    return Finding(what="operator", ok=True, says=f"{says}; {leads}")


def _leaders(client: Client) -> list[Finding]:
    """Return a finding if several operators lead, each by a Lease of a namespace of its own."""
    try:
        holders = leaders(client, operator_namespaces(client))
    except ApiError as error:
        if error.status != 403:
            raise
        return []
    holders = [
        holder for holder in holders if any(other is not holder and in_conflict(holder, other) for other in holders)
    ]
    if not holders:
        return []
    names = ", ".join(f"{holder.name} in {holder.namespace}" for holder in holders)
    says = f"{len(holders)} lead at a time, and may act on the same runs: {names}"
    remedy = f"stop all but one; all with `--namespace {holders[0].namespace}` take turns"
    return [Finding(what="leaders", ok=False, says=says, remedy=remedy)]


def _read(client: Client) -> Inventory:
    apis = client.get("/apis").get("groups") or ()
    deployments = _list(client, "/apis/apps/v1/deployments")
    daemons = _list(client, "/apis/apps/v1/daemonsets")
    controllers = None if deployments is None and daemons is None else [*(deployments or ()), *(daemons or ())]
    return Inventory(
        apis=frozenset(str(version["groupVersion"]) for group in apis for version in group["versions"]),
        nodes=_list(client, "/api/v1/nodes"),
        controllers=controllers,
        storage_classes=_list(client, "/apis/storage.k8s.io/v1/storageclasses"),
        slices=list_slices(client),
        are_slices_offered=are_offered(client),
    )


def _list(client: Client, path: str) -> list[Object] | None:
    """Return the objects of a list; None if they may not be read."""
    try:
        return list(client.items(path))
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def _word(user: str) -> str:
    """Return a user's name with characters that a label allows, at most 40."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in user.lower()).strip("-")[:40]
