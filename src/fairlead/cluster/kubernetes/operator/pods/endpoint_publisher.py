"""Maintains each endpoint's address, and behind it the serving replicas of the latest decision."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.manifests.endpoints import (
    render_backends,
    render_endpoint,
    render_routes,
    render_team_routes,
    routes_name,
)
from fairlead.cluster.kubernetes.manifests.gateway import GATEWAY_PORT
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.pods.gateways import Gateways
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.cluster.preflight import gateway_problem
from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.serving.routes import (
    endpoints,
    gateways_for,
    places_on_cluster,
    ready_pods,
    routes,
    team_routes,
    that_serve,
)
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Pod, Snapshot, Workload

log = logging.getLogger(__name__)

Addresses = dict[str, str]
# How long to wait before checking again whether another Service has the name.
PAUSE_S = 10.0
# How often some objects are rewritten, since they may have been deleted: of so many endpoints, those that were
# written longest ago.
CHECK_S, MOST_CHECKS = 30.0, 20
IPV4, IPV6 = "IPv4", "IPv6"
CONFIGMAPS = f"/api/v1/namespaces/{names.GATEWAY_NAMESPACE}/configmaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """An endpoint and the pods behind its address: its serving replicas, or gateways."""

    endpoint: Workload[Serving]
    addresses: Addresses
    is_gateways: bool = False

    def is_like(self, written: "Backends | None") -> bool:
        """Return whether the written content is the same."""
        return written is not None and (written.addresses, written.is_gateways) == (self.addresses, self.is_gateways)


class EndpointPublisher(Controller):
    """Writes what has changed since it was written; what a previous operator wrote is unknown.

    Args:
        gateways: The gateways for endpoints that need them.
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "the addresses of endpoints"
    stage = PassStage.CHANGES

    def __init__(
        self, cluster: KubernetesCluster, gateways: Gateways, *, may_act: Callable[[], bool] = lambda: True
    ) -> None:
        self._gateways = gateways
        # By team. What an operator before has left of teams that have none any more is listed once.
        self._routes: dict[str, dict[str, Any]] | None = None
        self._published: dict[str, dict[str, Any] | None] = {}
        self._listed: list[str] | None = None
        self._misfits: dict[str, tuple[dict[str, Any], str]] = {}
        self._unrouted: set[str] = set()
        self._cluster = cluster
        self._view = cluster.view
        self._client = cluster.client
        self._may_act = may_act
        self._lock = threading.Lock()
        self._wanted: dict[str, Backends] = {}
        self._written: dict[str, Backends] = {}
        self._again_at: dict[str, float] = {}
        self._written_at: dict[str, float] = {}
        self._check_at = 0.0

    @property
    def is_behind(self) -> bool:
        """Return whether anything is still to be written."""
        with self._lock:
            return bool(self._due()) or bool(self._untold()) or self._listed != self._teams()

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        agent, snapshot = turn.agent, turn.snapshot
        workloads = endpoints(snapshot)
        self._gateways.watch()
        if not workloads and not self._wanted and not self._gateways.are_there:
            return
        families, pods = families_of(snapshot), ready_pods(snapshot)
        through = self._gateways.ready()
        # Before the addresses, so that a gateway knows an endpoint before its first request.
        self._tell_gateways(agent, snapshot, pods, len(through))
        wanted = {}
        for endpoint in workloads:
            if (problem := gateway_problem(endpoint.spec)) is not None:
                chosen = through[: gateways_for(endpoint.spec, len(through))]
                addresses = {gateway.key.partition("/")[2]: gateway.address for gateway in chosen}
                wanted[endpoint.uid] = Backends(endpoint=endpoint, addresses=addresses, is_gateways=True)
                if not self._gateways.are_there:
                    self._cluster.note_address(endpoint.uid, problem)
                elif (misfit := self._misfit(endpoint)) is not None or endpoint.uid in self._unrouted:
                    self._cluster.note_address(endpoint.uid, misfit)
                    (self._unrouted.discard if misfit is None else self._unrouted.add)(endpoint.uid)
                continue
            with self._view.isolation.of(f"addresses of {endpoint.spec.team}/{endpoint.spec.name}"):
                addresses = {}
                for _, pod in that_serve(endpoint, families[endpoint.uid], pods):
                    addresses |= self._address(pod)
                wanted[endpoint.uid] = Backends(endpoint=endpoint, addresses=addresses)
        with self._lock:
            self._wanted = wanted
            self._written = {uid: backends for uid, backends in self._written.items() if uid in wanted}
            self._again_at = {uid: at for uid, at in self._again_at.items() if uid in wanted}
            self._written_at = {uid: at for uid, at in self._written_at.items() if uid in wanted}
            due = self._due()
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + CHECK_S
        self._cluster.keep_addresses(wanted.keys())
        self._unrouted &= wanted.keys()
        for uid in due:
            endpoint = wanted[uid].endpoint
            name = f"publish {endpoint.spec.team}/{endpoint.spec.name}"
            agent.submit(uid, name, partial(self._write, uid))

    def _tell_gateways(self, agent: PodAgent, snapshot: Snapshot, pods: Mapping[str, Pod], num_gateways: int) -> None:
        """Write the routes if there are gateways that need them."""
        if not self._gateways.is_known:
            return
        urls = {
            pod.uid: f"http://{f'[{address}]' if ':' in address else address}:{MASTER_PORT}"
            for pod in pods.values()
            for address in self._address(pod).values()
        }
        all_routes = routes(snapshot, places_on_cluster(snapshot), urls, self._gateways.keys(), max(1, num_gateways))
        with self._lock:
            self._routes = team_routes(all_routes)
            untold, is_listed = self._untold(), self._listed == self._teams()
        for team in untold:
            agent.submit(routes_name(team), f"tell the gateways of team {team}", partial(self._write_routes, team))
        if not is_listed:
            agent.submit(names.ROUTES, "tell the gateways which teams have routes", self._write_teams)

    def _untold(self) -> list[str]:
        """Return the teams whose routes are to be written or removed; call with the lock held."""
        if self._routes is None:
            return []
        routes, published = self._routes, self._published
        return [team for team in {**routes, **published} if routes.get(team) != published.get(team)]

    def _teams(self) -> list[str] | None:
        """Return the teams that gateways have to know; call with the lock held."""
        if self._routes is None:
            return None
        return sorted(team for team, share in self._routes.items() if self._misfits.get(team, (None, ""))[0] != share)

    def _misfit(self, endpoint: Workload[Serving]) -> str | None:
        """Return why gateways cannot have the routes of an endpoint's team; None if they can."""
        with self._lock:
            share, problem = self._misfits.get(endpoint.spec.team, (None, ""))
            return problem if self._routes is not None and self._routes.get(endpoint.spec.team) == share else None

    def _write_routes(self, team: str) -> None:
        """Write the wanted routes of a team, or remove them.

        What a team has too much of, or the API server refuses, is that team's loss alone.
        """
        with self._lock:
            share = None if self._routes is None else self._routes.get(team)
            if share == self._published.get(team):
                return
        if not self._may_act():
            return
        path, problem = f"{CONFIGMAPS}/{segment(routes_name(team))}", ""
        try:
            if share is None:
                self._remove(path)
            else:
                self._client.apply(path, render_team_routes(team, share))
        except ValueError as error:
            problem = str(error)
        except ApiError as error:
            if error.concerns_all or error.status >= 500:
                raise
            problem = f"the API server refuses the routes of team {team}: {error.server_message}"
        with self._lock:
            self._published[team] = share
            self._misfits.pop(team, None)
            if share is None:
                del self._published[team]
            elif problem:
                self._misfits[team] = share, problem
        if problem:
            log.warning("%s", problem)
        self._view.wake()

    def _write_teams(self) -> None:
        """Write which teams have routes; at first remove what is left of others."""
        with self._lock:
            teams, is_first = self._teams(), self._listed is None
        if teams is None or not self._may_act():
            return
        if is_first:
            query = {"labelSelector": f"{names.CONTENT}={names.TEAM_ROUTES}"}
            wanted = {names.ROUTES, *map(routes_name, teams)}
            for configmap in self._client.items(CONFIGMAPS, query):
                name = str(configmap["metadata"]["name"])
                if name not in wanted:
                    with self._view.isolation.of(f"leftover routes {name}"):
                        self._remove(f"{CONFIGMAPS}/{segment(name)}")
        self._client.apply(f"{CONFIGMAPS}/{names.ROUTES}", render_routes(teams))
        with self._lock:
            self._listed = teams

    def _remove(self, path: str) -> None:
        try:
            self._client.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

    def _due(self) -> list[str]:
        """Return the uids of endpoints with something to write; call with the lock held."""
        now = time.monotonic()
        uids = [
            uid
            for uid, backends in self._wanted.items()
            if not backends.is_like(self._written.get(uid)) and self._again_at.get(uid, 0.0) <= now
        ]
        if now >= self._check_at:
            old = [uid for uid, at in self._written_at.items() if at <= now - CHECK_S and uid not in uids]
            uids += sorted(old, key=self._written_at.__getitem__)[:MOST_CHECKS]
        return uids

    def _address(self, pod: Pod) -> Addresses:
        pod_objects = self._view.pods_of(pod.workload_uid).values()
        return {
            pod_object.key.partition("/")[2]: pod_object.address
            for pod_object in pod_objects
            if (pod_object.attempt, pod_object.index, pod_object.replacement)
            == (pod.attempt, pod.index, pod.replacement)
            and pod_object.address
        }

    def _write(self, uid: str) -> None:
        """Write the wanted objects of an endpoint."""
        with self._lock:
            backends = self._wanted.get(uid)
        if backends is None or not self._may_act():
            return
        # Each time: a previous endpoint of that name may have been deleted in the meantime.
        if not self._has_address(backends.endpoint):
            with self._lock:
                self._again_at[uid] = time.monotonic() + PAUSE_S
            return
        if self._gateways.are_there or not backends.is_gateways:
            self._cluster.note_address(uid, self._misfit(backends.endpoint) if backends.is_gateways else None)
        with self._lock:
            # Until the write has succeeded the cluster's content is unknown.
            self._written.pop(uid, None)
        self._list(backends)
        with self._lock:
            self._written[uid], self._written_at[uid] = backends, time.monotonic()
        if self.is_behind:
            # Other endpoints, or this one again, have something to write; a removal waits for nothing.
            self._view.wake()

    def _has_address(self, endpoint: Workload[Serving]) -> bool:
        """Create its Service, or adopt that of a previous endpoint; return False if another object has the name."""
        content = render_endpoint(endpoint)
        metadata = content["metadata"]
        place = f"/api/v1/namespaces/{segment(endpoint.spec.team)}/services"
        path = f"{place}/{segment(metadata['name'])}"
        try:
            self._client.create(place, content)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            return True
        existing = self._client.get(path)["metadata"]
        if (existing.get("labels") or {}).get(names.MANAGED_BY) != names.MANAGER:
            problem = f"a Service named {metadata['name']} exists that Fairlead did not create; delete it"
            self._cluster.note_address(endpoint.uid, problem)
            return False
        if existing.get("ownerReferences") != metadata["ownerReferences"]:
            owned = {"uid": existing["uid"], "ownerReferences": metadata["ownerReferences"]}
            self._client.merge(path, {"metadata": owned})
        return True

    def _list(self, backends: Backends) -> None:
        addresses = backends.addresses
        family = IPV6 if any(":" in address for address in addresses.values()) else IPV4
        try:
            self._apply(backends, family)
        except ApiError as error:
            # The address family of a Service cannot change, and is unknown while no replica serves.
            if error.status != 422 or addresses:
                raise
            self._apply(backends, IPV6)

    def _apply(self, backends: Backends, family: str) -> None:
        endpoint = backends.endpoint
        if backends.is_gateways:
            content = render_backends(
                endpoint, backends.addresses, family, port=GATEWAY_PORT, namespace=names.GATEWAY_NAMESPACE
            )
        else:
            content = render_backends(endpoint, backends.addresses, family)
        place = f"/apis/discovery.k8s.io/v1/namespaces/{segment(endpoint.spec.team)}/endpointslices"
        self._client.apply(f"{place}/{segment(content['metadata']['name'])}", content)
