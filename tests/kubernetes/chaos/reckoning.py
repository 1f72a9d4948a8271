"""What must be true of a namespace when no fault lasts: every run as it was wished, and every word of its status so."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.cluster.kubernetes.api.client import Client, Object
from fairlead.state.snapshot import Intent, Workload

LIVE = ("Pending", "Running")


@dataclass(slots=True)
class Wish:
    """What a user asked for.

    Attributes:
        ends: Its pods end by themselves.
        was_stopped: It was asked to stop at some time, and may have been over before it was asked for something else.
    """

    run: Workload
    ends: bool
    intent: Intent = Intent.RUN
    was_stopped: bool = False


def problems_of(client: Client, namespace: str, wishes: Iterable[Wish]) -> list[str]:
    """What is not as it should be, or not yet."""
    place = f"namespaces/{namespace}"
    runs = items(client, f"/apis/fairlead.dev/v1alpha1/{place}/trainings")
    pods = items(client, f"/api/v1/{place}/pods")
    owned = {
        kind: items(client, path)
        for kind, path in (
            ("service", f"/api/v1/{place}/services"),
            ("networkpolicy", f"/apis/networking.k8s.io/v1/{place}/networkpolicies"),
        )
    }
    free = free_gpus(client)
    by_uid = {run["metadata"]["uid"]: run for run in runs}
    return [
        *(problem for wish in wishes for problem in _of_wish(wish, by_uid, pods, free)),
        *(
            f"{kind} {each['metadata']['name']} is orphaned"
            for kind, found in (*owned.items(), ("pod", pods))
            for each in found
            if owner_of(each) not in by_uid
        ),
    ]


def _of_wish(wish: Wish, runs: dict[str, Object], pods: list[Object], free: dict[str, int]) -> Iterator[str]:
    uid, name = wish.run.uid, wish.run.spec.name
    run = runs.get(uid)
    own = [pod for pod in pods if owner_of(pod) == uid]
    live = [pod for pod in own if pod["status"].get("phase") in LIVE]
    if wish.intent is Intent.DELETE:
        if run is not None or own:
            yield f"{name} was to be deleted and is there, with {len(own)} pods"
        return
    if run is None:
        yield f"{name} is lost"
        return
    status = run.get("status") or {}
    phase = status.get("phase")
    if phase not in _expected(wish):
        yield f"{name} is {phase}, wanted {wish.intent}"
    if phase == "Running":
        yield from _of_gang(wish, status, live)
    elif phase == "Pending":
        yield from _of_waiting(wish, status, free)
    if phase != "Running" and live:
        yield f"{name} is {phase} and has live pods"
    yield from _of_status(name, run, status)


def _expected(wish: Wish) -> tuple[str, ...]:
    if wish.intent is Intent.SUSPEND:
        return ("Suspended", "Succeeded", "Stopped") if wish.was_stopped else ("Suspended", "Succeeded")
    if wish.intent is Intent.STOP:
        return ("Stopped", "Succeeded")
    return ("Succeeded", "Pending") if wish.ends else ("Running", "Pending")


def _of_waiting(wish: Wish, status: Object, free: dict[str, int]) -> Iterator[str]:
    """It waits for room, or for its turn, and says so."""
    name, reason = wish.run.spec.name, status.get("reason")
    if reason not in ("WaitingForResources", "WaitingForTurn"):
        yield f"{name} waits because it is {reason}, wanted {wish.intent}"
    if reason == "WaitingForResources" and _fits(wish, free):
        yield f"{name} waits while there is room: {status.get('message')}"


def _of_gang(wish: Wish, status: Object, live: list[Object]) -> Iterator[str]:
    """A running gang is whole, of one start, and all of it runs."""
    name, size = wish.run.spec.name, wish.run.spec.nodes
    members = {(pod["metadata"]["labels"]["fairlead.dev/index"], pod["status"]["phase"]) for pod in live}
    attempts = {int(pod["metadata"]["labels"]["fairlead.dev/attempt"]) for pod in live}
    if members != {(str(index), "Running") for index in range(size)} or len(live) != size:
        yield f"{name} is Running with {sorted(members)} of {size} pods"
    if attempts != {status.get("attempt")}:
        yield f"{name} is at start {status.get('attempt')} with pods of {sorted(attempts)}"
    if status.get("ranks") != f"{wish.run.spec.world_size}/{wish.run.spec.world_size}":
        yield f"{name} says {status.get('ranks')} ranks run"


def _of_status(name: str, run: Object, status: Object) -> Iterator[str]:
    """The conditions are those of the phase, and speak of the object as it is."""
    generation = run["metadata"]["generation"]
    phase = status.get("phase")
    true = {c["type"] for c in status.get("conditions") or () if c["status"] == "True"}
    expected = {
        "Running": {"Placed", "Running", "Ready"},
        "Succeeded": {"Complete", "Ready"},
        "Failed": {"Failed", "Stalled"},
        "Stopped": {"Stalled"},
        "Suspended": {"Suspended"},
    }.get(str(phase), set())
    if true != expected:
        yield f"{name} is {phase} with the conditions {sorted(true)}"
    conditions = status.get("conditions") or ()
    # The API server's own condition of an object that no operator has considered yet has no generation.
    generations = {status.get("observedGeneration"), *(c.get("observedGeneration") for c in conditions)}
    if generations != {generation}:
        yield f"{name} is of generation {generation} and its status of {generations}"


def free_gpus(client: Client) -> dict[str, int]:
    """GPUs of each ready node that no pod of anybody holds."""
    free = {
        node["metadata"]["name"]: int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))
        for node in items(client, "/api/v1/nodes")
        if not node["spec"].get("taints")
    }
    for pod in items(client, "/api/v1/pods"):
        node = pod["spec"].get("nodeName")
        if node in free and pod["status"].get("phase") in LIVE:
            asked = (c.get("resources", {}).get("requests", {}) for c in pod["spec"]["containers"])
            free[node] -= sum(int(each.get("nvidia.com/gpu", 0)) for each in asked)
    return free


def _fits(wish: Wish, free: dict[str, int]) -> bool:
    gpu = wish.run.spec.resources.gpu
    assert gpu is not None
    return sum(room // (gpu.milli // 1000) for room in free.values()) >= wish.run.spec.nodes


def owner_of(content: Object) -> str | None:
    """Uid of what controls it."""
    owners = content["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def items(client: Client, path: str) -> list[Object]:
    return list(client.request("GET", path)["items"])
