"""Computes the routes for gateways: endpoints, their revisions and their serving replicas."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.serving import failure_of, replicas_of, share_of_canary
from fairlead.policy.serving.latency_scaling import most_in_flight
from fairlead.policy.serving.rollout import ReplicaState
from fairlead.specs.serving import Routing, Serving
from fairlead.state.access_keys import AccessKey
from fairlead.state.endpoint_detail import ServingDetail, detail_of
from fairlead.state.snapshot import Pod, Snapshot, Workload

Backend = dict[str, str]
VERSION = 2
# The sum of the weights of all revisions during a trial.
WEIGHTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRoute:
    """The name of an endpoint at a gateway, which is also its path, and its hosts."""

    name: str
    hosts: tuple[str, ...]


def places_here(snapshot: Snapshot) -> dict[str, EndpointRoute]:
    """Return the places of endpoints of one machine, by uid."""
    return {uid: EndpointRoute(name=name, hosts=(f"{name}.localhost",)) for uid, name in public_names(snapshot).items()}


def places_on_cluster(snapshot: Snapshot) -> dict[str, EndpointRoute]:
    """Return the places of endpoints at gateways of a Kubernetes cluster, by uid: the names of their Services.

    Each host names the team. A gateway does not know from which namespace a request comes: a host without it would be
    that of another team's endpoint of the same name, or of none.
    """
    places = {}
    for parent in endpoints(snapshot):
        name, team = f"serve-{parent.spec.name}", parent.spec.team
        hosts = (f"{name}.{team}", f"{name}.{team}.svc", f"{name}.{team}.svc.cluster.local")
        places[parent.uid] = EndpointRoute(name=f"{team}/{parent.spec.name}", hosts=hosts)
    return places


def public_names(snapshot: Snapshot) -> dict[str, str]:
    """Return the public names of endpoints by uid: their own name, prefixed with the team if it is taken."""
    taken: dict[str, str] = {}
    for parent in sorted(endpoints(snapshot), key=lambda endpoint: (endpoint.created_at, endpoint.uid)):
        name = parent.spec.name
        while name in taken.values():
            name = f"{parent.spec.team}-{name}"
        taken[parent.uid] = name
    return taken


def that_serve(parent: Workload[Serving], family: Family, pods: Mapping[str, Pod]) -> list[tuple[ReplicaState, Pod]]:
    """Return the replicas that may receive requests, in the order of their numbers.

    Args:
        pods: Ready pods, by the uid of their workload.
    """
    pairs = (
        (replica, pods.get(family.children[replica.name].uid)) for replica in replicas_of(detail_of(parent), family)
    )
    ready = [(replica, pod) for replica, pod in pairs if replica.ready and pod is not None]
    return sorted(ready, key=lambda pair: pair[0].number)


def ready_pods(snapshot: Snapshot) -> dict[str, Pod]:
    """Return the pods whose probes succeed, by the uid of their workload."""
    return {pod.workload_uid: pod for pod in snapshot.pods if pod.ready and not pod.phase.is_final}


def routes(
    snapshot: Snapshot,
    places: Mapping[str, EndpointRoute],
    urls: Mapping[str, str],
    keys: Sequence[AccessKey] = (),
    num_gateways: int = 1,
) -> dict[str, Any]:
    """Return the routes of endpoints that are not finished.

    Args:
        places: Places of endpoints that go through a gateway, by uid.
        urls: Addresses of listening pods, by uid.
        keys: Access keys of all teams.
        num_gateways: The number of gateways, each of which enforces its part of the limits.
    """
    families = families_of(snapshot)
    pods = ready_pods(snapshot)
    services = {}
    for parent in endpoints(snapshot):
        place = places.get(parent.uid)
        if place is None:
            continue
        family = families[parent.uid]
        serving: dict[int, list[dict[str, str]]] = {}
        for replica, pod in that_serve(parent, family, pods):
            if pod.uid in urls:
                serving.setdefault(replica.revision, []).append({"id": pod.uid, "url": urls[pod.uid]})
        spec, detail = parent.spec, detail_of(parent)
        share = gateways_for(spec, num_gateways)
        most_in_flight = _most_in_flight(spec, family, sum(map(len, serving.values())))
        services[place.name] = {
            "path": f"/{place.name}",
            "hosts": list(place.hosts),
            **_access(spec, share),
            "timeout_s": spec.timeout_s,
            "idempotent": spec.idempotent,
            "max_concurrency": _part(spec.max_concurrency, share),
            "max_queue": -(-spec.max_queue // share),
            "revisions": _shares(spec, detail, serving),
            "canary": _canary(spec, detail),
            "places": spec.scale.concurrency,
            "most_in_flight": None if most_in_flight is None else max(1, most_in_flight // share),
            "counts_tokens": spec.scale.is_by_tokens,
            "by_prefix": spec.routing is Routing.PREFIX,
            "failure": failure_of(parent, family.children),
        }
    callers = {team for service in services.values() for team in service["keys"] or ()}
    return {"version": VERSION, "services": services, "keys": _hashes(keys, callers)}


def team_routes(serving_routes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each team's part of a cluster's routes: its endpoints, and its keys if any endpoint accepts them."""
    shares: dict[str, dict[str, Any]] = {}
    for name, service in serving_routes["services"].items():
        share = shares.setdefault(name.partition("/")[0], {"version": VERSION, "services": {}, "keys": {}})
        share["services"][name] = service
    for team, hashes in serving_routes["keys"].items():
        share = shares.setdefault(team, {"version": VERSION, "services": {}, "keys": {}})
        share["keys"][team] = hashes
    return shares


def _hashes(keys: Sequence[AccessKey], teams: Collection[str]) -> dict[str, dict[str, float | None]]:
    """Return the hashes of the keys of these teams and when they expire, once, however many endpoints accept them."""
    hashes: dict[str, dict[str, float | None]] = {}
    for key_hash in keys:
        if key_hash.team in teams:
            hashes.setdefault(key_hash.team, {})[key_hash.sha256] = key_hash.expires_at
    return hashes


def gateways_for(spec: Serving, num_gateways: int) -> int:
    """Return how many of the gateways take requests for an endpoint.

    Limits are divided among them in whole numbers, so that together they admit no more than one would: if a limit is
    below the number of gateways, only that many take part.
    """
    access = spec.access
    bounds = [spec.max_concurrency]
    if access is not None:
        bounds += [access.requests_per_minute, access.tokens_per_minute]
    return max(1, min([num_gateways, *(bound for bound in bounds if bound is not None)]))


def _part(bound: int | None, of: int) -> int | None:
    return None if bound is None else bound // of


def _access(spec: Serving, share: int) -> dict[str, Any]:
    """Return the teams whose keys have access and their limits; without a key of them no client is admitted."""
    if spec.access is None:
        return {"keys": None}
    return {
        "keys": sorted(spec.teams_with_access),
        "requests_per_minute": _part(spec.access.requests_per_minute, share),
        "tokens_per_minute": _part(spec.access.tokens_per_minute, share),
        "origins": list(spec.access.origins),
    }


def _shares(spec: Serving, detail: ServingDetail, serving: Mapping[int, Sequence[Backend]]) -> list[dict[str, Any]]:
    """Return the weights of revisions, by their serving replicas.

    A canary gets its share, and an equal share of the old revision is compared with it: on dedicated replicas, as many
    as the canary has, if the old revision has more than these; else on all of them. A shadow gets copies of the
    requests of that share. Without a ready replica of the old revision requests wait for one, unless none comes.
    """
    trial = detail.canary
    if trial is not None and spec.canary is not None and not serving.get(trial.old) and not trial.answers_alone:
        return []
    if trial is None or spec.canary is None or not (serving.get(detail.target) and serving.get(trial.old)):
        return [_share(number, len(backends), backends) for number, backends in sorted(serving.items())]
    new, old = serving[detail.target], serving[trial.old]
    weight = round(WEIGHTS * share_of_canary(spec, trial))
    if spec.canary.shadow:
        # The replica that answers a request does not depend on whether the request is copied.
        return [
            _share(trial.old, WEIGHTS - weight, old),
            _share(trial.old, weight, old, "control"),
            {**_share(detail.target, weight, new, "canary"), "shadow": True},
        ]
    rest = WEIGHTS - 2 * weight
    control = old[: len(new)] if rest > 0 and len(new) < len(old) else old
    others = [replica for replica in old if replica not in control] or old
    shares = [_share(trial.old, rest, others)] if rest else []
    return [*shares, _share(trial.old, weight, control, "control"), _share(detail.target, weight, new, "canary")]


def _share(number: int, weight: int, backends: Sequence[Backend], arm: str = "") -> dict[str, Any]:
    return {"name": f"r{number}", "weight": weight, "shadow": False, "arm": arm, "replicas": list(backends)}


def _most_in_flight(spec: Serving, family: Family, num_ready: int) -> int | None:
    """Return the number of requests that can end in time; None if they may be late."""
    if spec.scale.latency_s is None:
        return None
    return most_in_flight(spec, family.demand, num_ready)


def _canary(spec: Serving, detail: ServingDetail) -> dict[str, Any] | None:
    """Return what the gateway compares."""
    if detail.canary is None or spec.canary is None:
        return None
    metric = spec.canary.metric
    return {
        "trial": detail.canary.name,
        "latency_s": spec.canary.latency_s,
        "header": None if metric is None else metric.header,
        "above": None if metric is None else metric.above,
        "below": None if metric is None else metric.below,
    }


def endpoints(snapshot: Snapshot) -> list[Workload[Serving]]:
    """Return the unfinished endpoints, except those that engines or sites serve."""
    parents = [
        parent
        for parent in snapshot.parents
        if isinstance(parent.spec, Serving)
        and parent.spec.engine is None
        and not (parent.spec.sites or parent.status.phase.is_final)
    ]
    return cast("list[Workload[Serving]]", parents)
