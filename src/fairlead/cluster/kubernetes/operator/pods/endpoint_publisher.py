"""Maintains each endpoint's address, and behind it the serving replicas of the latest decision."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.manifests.endpoints import render_backends, render_endpoint, render_routes
from fairlead.cluster.kubernetes.manifests.gateway import GATEWAY_PORT
from fairlead.cluster.kubernetes.manifests.pod_environment import MASTER_PORT
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.pods.gateways import Gateways
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.cluster.preflight import gateway_problem
from fairlead.frozen import dataclass
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.serving.routes import (
    endpoints,
    gateways_for,
    places_on_cluster,
    ready_pods,
    routes,
    that_serve,
)
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Pod, Snapshot, Workload

Addresses = dict[str, str]
# How long to wait before checking again whether another Service has the name.
PAUSE_S = 10.0
# How often some objects are rewritten, since they may have been deleted: of so many endpoints, those that were
# written longest ago.
CHECK_S, MOST_CHECKS = 30.0, 20
IPV4, IPV6 = "IPv4", "IPv6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """An endpoint and the pods behind its address: its serving replicas, or gateways."""

    endpoint: Workload[Serving]
    addresses: Addresses
    is_gateways: bool = False

    def is_like(self, written: "Backends | None") -> bool:
        """Return whether the written content is the same."""
        return written is not None and (written.addresses, written.is_gateways) == (self.addresses, self.is_gateways)


class EndpointPublisher:
    """Writes what has changed since it was written; what a previous operator wrote is unknown.

    Args:
        gateways: The gateways for endpoints that need them.
        may_act: Returns whether this process still leads; asked before each request.
    """

    def __init__(
        self, cluster: KubernetesCluster, gateways: Gateways, *, may_act: Callable[[], bool] = lambda: True
    ) -> None:
        self._gateways = gateways
        self._routes: dict[str, Any] | None = None
        self._told: dict[str, Any] | None = None
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
            return bool(self._due()) or self._routes != self._told

    def act(self, agent: Agent, snapshot: Snapshot) -> None:
        """Queue the work that follows from a snapshot."""
        there = endpoints(snapshot)
        self._gateways.watch()
        if not there and not self._wanted and not self._gateways.are_there:
            return
        families, pods = families_of(snapshot), ready_pods(snapshot)
        through = self._gateways.ready()
        # Before the addresses, so that a gateway knows an endpoint before its first request.
        self._tell_gateways(agent, snapshot, pods, len(through))
        wanted = {}
        for endpoint in there:
            if (problem := gateway_problem(endpoint.spec)) is not None:
                chosen = through[: gateways_for(endpoint.spec, len(through))]
                addresses = {each.key.partition("/")[2]: each.address for each in chosen}
                wanted[endpoint.uid] = Backends(endpoint=endpoint, addresses=addresses, is_gateways=True)
                if not self._gateways.are_there:
                    self._cluster.note_address(endpoint.uid, problem)
                continue
            addresses = {}
            for _, pod in that_serve(endpoint, families[endpoint.uid], pods):
                addresses |= self._address(pod)
            wanted[endpoint.uid] = Backends(endpoint=endpoint, addresses=addresses)
        with self._lock:
            self._wanted = wanted
            self._written = {uid: found for uid, found in self._written.items() if uid in wanted}
            self._again_at = {uid: at for uid, at in self._again_at.items() if uid in wanted}
            self._written_at = {uid: at for uid, at in self._written_at.items() if uid in wanted}
            due = self._due()
            if time.monotonic() >= self._check_at:
                self._check_at = time.monotonic() + CHECK_S
        self._cluster.keep_addresses(wanted.keys())
        for uid in due:
            endpoint = wanted[uid].endpoint
            name = f"publish {endpoint.spec.team}/{endpoint.spec.name}"
            agent.submit(uid, name, partial(self._write, uid))

    def _tell_gateways(self, agent: Agent, snapshot: Snapshot, pods: Mapping[str, Pod], num_gateways: int) -> None:
        """Write the routes if there are gateways that need them."""
        if not self._gateways.is_known:
            return
        urls = {
            pod.uid: f"http://{f'[{address}]' if ':' in address else address}:{MASTER_PORT}"
            for pod in pods.values()
            for address in self._address(pod).values()
        }
        found = routes(snapshot, places_on_cluster(snapshot), urls, self._gateways.keys(), max(1, num_gateways))
        with self._lock:
            is_new, self._routes = found != self._routes, found
            is_due = is_new or self._told != found
        if is_due:
            agent.submit(names.ROUTES, "tell the gateways", self._write_routes)

    def _write_routes(self) -> None:
        """Write the wanted routes."""
        with self._lock:
            found = self._routes
            if found is None or found == self._told:
                return
        if not self._may_act():
            return
        content = render_routes(found)
        self._client.apply(f"/api/v1/namespaces/{names.GATEWAY_NAMESPACE}/configmaps/{names.ROUTES}", content)
        with self._lock:
            self._told = found

    def _due(self) -> list[str]:
        """Return the uids of endpoints with something to write; call with the lock held."""
        now = time.monotonic()
        found = [
            uid
            for uid, backends in self._wanted.items()
            if not backends.is_like(self._written.get(uid)) and self._again_at.get(uid, 0.0) <= now
        ]
        if now >= self._check_at:
            old = [uid for uid, at in self._written_at.items() if at <= now - CHECK_S and uid not in found]
            found += sorted(old, key=self._written_at.__getitem__)[:MOST_CHECKS]
        return found

    def _address(self, pod: Pod) -> Addresses:
        found = self._view.pods_of(pod.workload_uid).values()
        return {
            each.key.partition("/")[2]: each.address
            for each in found
            if (each.attempt, each.index) == (pod.attempt, pod.index) and each.address
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
            self._cluster.note_address(uid, None)
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
        place = f"/api/v1/namespaces/{endpoint.spec.team}/services"
        path = f"{place}/{metadata['name']}"
        try:
            self._client.create(place, content)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            return True
        there = self._client.get(path)["metadata"]
        if (there.get("labels") or {}).get(names.MANAGED_BY) != names.MANAGER:
            said = f"a Service named {metadata['name']} exists that Fairlead did not create; delete it"
            self._cluster.note_address(endpoint.uid, said)
            return False
        if there.get("ownerReferences") != metadata["ownerReferences"]:
            owned = {"uid": there["uid"], "ownerReferences": metadata["ownerReferences"]}
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
        place = f"/apis/discovery.k8s.io/v1/namespaces/{endpoint.spec.team}/endpointslices"
        self._client.apply(f"{place}/{content['metadata']['name']}", content)
