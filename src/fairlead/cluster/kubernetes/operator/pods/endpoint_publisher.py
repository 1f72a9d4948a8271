"""Keeps the address of each endpoint, and behind it the replicas that serve, as the latest decision has them."""

import threading
import time
from collections.abc import Callable
from functools import partial

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.manifests.endpoints import render_backends, render_endpoint
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster, Refusal
from fairlead.cluster.kubernetes.operator.pods.pod_agent import Agent
from fairlead.policy.kinds.parents import families_of
from fairlead.policy.serving.routes import endpoints, ready_pods, that_serve
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Pod, Snapshot, Workload

Addresses = dict[str, str]
# Until it is looked again whether somebody else's Service has the name.
PAUSE_S = 10.0
IPV4, IPV6 = "IPv4", "IPv6"


class EndpointPublisher:
    """Writes what is another than what was written; nothing is known of what an operator before has written.

    Args:
        may_act: Whether we still lead; asked before each request.
    """

    def __init__(self, cluster: KubernetesCluster, *, may_act: Callable[[], bool] = lambda: True) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._client = cluster.client
        self._may_act = may_act
        self._lock = threading.Lock()
        self._wanted: dict[str, tuple[Workload[Serving], Addresses]] = {}
        self._written: dict[str, Addresses] = {}
        self._again_at: dict[str, float] = {}

    @property
    def is_behind(self) -> bool:
        """Return whether something is still to be written."""
        with self._lock:
            return bool(self._due())

    def act(self, agent: Agent, snapshot: Snapshot) -> None:
        """Give out what is to be written by a snapshot."""
        there = endpoints(snapshot)
        if not there and not self._wanted:
            return
        families, pods = families_of(snapshot), ready_pods(snapshot)
        wanted = {}
        for endpoint in there:
            addresses: Addresses = {}
            for _, pod in that_serve(endpoint, families[endpoint.uid], pods):
                addresses |= self._address(pod)
            wanted[endpoint.uid] = (endpoint, addresses)
        with self._lock:
            self._wanted = wanted
            self._written = {uid: found for uid, found in self._written.items() if uid in wanted}
            self._again_at = {uid: at for uid, at in self._again_at.items() if uid in wanted}
            due = self._due()
        for uid in due:
            endpoint, _ = wanted[uid]
            name = f"publish {endpoint.spec.team}/{endpoint.spec.name}"
            agent.submit(uid, name, partial(self._write, uid))

    def _due(self) -> list[str]:
        """Return the uids of those of which something is to be written, with the lock held."""
        now = time.monotonic()
        return [
            uid
            for uid, (_, addresses) in self._wanted.items()
            if self._written.get(uid) != addresses and self._again_at.get(uid, 0.0) <= now
        ]

    def _address(self, pod: Pod) -> Addresses:
        found = self._view.pods_of(pod.workload_uid).values()
        return {
            each.key.partition("/")[2]: each.address
            for each in found
            if (each.attempt, each.index) == (pod.attempt, pod.index) and each.address
        }

    def _write(self, uid: str) -> None:
        """Write what is wanted by now."""
        with self._lock:
            endpoint, addresses = self._wanted.get(uid, (None, {}))
        if endpoint is None or not self._may_act():
            return
        # Each time: that of an endpoint which had the name before may have gone meanwhile.
        if not self._has_address(endpoint):
            with self._lock:
                self._again_at[uid] = time.monotonic() + PAUSE_S
            return
        self._list(endpoint, addresses)
        with self._lock:
            self._written[uid] = addresses
        if self.is_behind:
            # Of others, or by now of this one: whoever is to go waits for nothing.
            self._view.wake()

    def _has_address(self, endpoint: Workload[Serving]) -> bool:
        """Create its Service, or take over that of an endpoint which had the name before; False for somebody else's."""
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
            said = f"a Service named {metadata['name']} is there that Fairlead did not create; delete it"
            self._cluster.note_refusal(endpoint.uid, Refusal.ADDRESS, said)
            return False
        if there.get("ownerReferences") != metadata["ownerReferences"]:
            owned = {"uid": there["uid"], "ownerReferences": metadata["ownerReferences"]}
            self._client.merge(path, {"metadata": owned})
        return True

    def _list(self, endpoint: Workload[Serving], addresses: Addresses) -> None:
        family = IPV6 if any(":" in address for address in addresses.values()) else IPV4
        try:
            self._apply(endpoint, addresses, family)
        except ApiError as error:
            # The family of one that is there cannot change, and where nobody serves it is not known.
            if error.status != 422 or addresses:
                raise
            self._apply(endpoint, addresses, IPV6)

    def _apply(self, endpoint: Workload[Serving], addresses: Addresses, family: str) -> None:
        content = render_backends(endpoint, addresses, family)
        place = f"/apis/discovery.k8s.io/v1/namespaces/{endpoint.spec.team}/endpointslices"
        self._client.apply(f"{place}/{content['metadata']['name']}", content)
