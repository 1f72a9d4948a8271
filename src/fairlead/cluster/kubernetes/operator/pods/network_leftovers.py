"""Removes the Service, EndpointSlices and NetworkPolicy of each run without pods: every node's proxy follows them.

Which runs have them is read once, when this operator begins to lead, and noted when they are made.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.manifests.services import MOST_ENDPOINTS, slice_name
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.state.snapshot import Phase

SURVEY = "survey-of-network-objects"
LISTS = ("/api/v1", "services"), ("/apis/networking.k8s.io/v1", "networkpolicies")
SLICES = "/apis/discovery.k8s.io/v1"
Submit = Callable[[str, str, Callable[[], None]], object]


class NetworkLeftovers:
    """Knows which runs have such objects, and removes those of runs without pods.

    Args:
        may_act: Returns whether this process still leads; asked before each run.
    """

    def __init__(self, cluster: KubernetesCluster, *, may_act: Callable[[], bool]) -> None:
        self._view = cluster.view
        self._client = cluster.client
        self._namespace = cluster.namespace
        self._may_act = may_act
        self._lock = threading.Lock()
        self._uids = set[str]()
        self._is_surveyed = False

    def note(self, uid: str) -> None:
        """Note that a run gets such objects."""
        with self._lock:
            self._uids.add(uid)

    def act(self, submit: Submit, unequip: Callable[[str, Callable[[], None]], None]) -> None:
        """Queue the work that is due.

        Args:
            unequip: Calls a function while nobody makes the objects of a run, if it still needs none.
        """
        if not self._is_surveyed:
            submit(SURVEY, "read which runs have network objects", self._survey)
        with self._lock:
            uids = tuple(self._uids)
        for uid in uids:
            run_object = self._view.find(uid)
            if run_object is None:
                self._drop(uid)  # the garbage collector removes them with the run
            elif has_no_network(run_object, self._view.pods_of(uid).values()) and self._may_act():
                name = f"remove the network objects of {run_object.key}"
                submit(uid, name, partial(unequip, uid, partial(self._remove, run_object)))

    def _survey(self) -> None:
        uids = set[str]()
        for api, plural in LISTS:
            where = "" if self._namespace is None else f"/namespaces/{segment(self._namespace)}"
            place = f"{api}{where}/{plural}"
            try:
                for content in self._client.items(place, {"labelSelector": f"{names.RUN_UID},{names.MANAGED_BY}"}):
                    uids.add(content["metadata"]["labels"][names.RUN_UID])
            except ApiError as error:
                # With roles of an older version the objects stay until the run is deleted.
                if error.status != 403:
                    raise
        with self._lock:
            self._uids |= uids
        self._is_surveyed = True

    def _remove(self, run_object: TrainingObject) -> None:
        run = run_object.workload
        if run is None:
            return
        place, name = f"namespaces/{segment(run_object.namespace)}", names.service_name(run)
        paths = [f"{api}/{place}/{plural}/{segment(name)}" for api, plural in LISTS]
        num_slices = -(-(run.spec.most_nodes or run.spec.nodes) // MOST_ENDPOINTS)
        paths += [f"{SLICES}/{place}/endpointslices/{segment(slice_name(run, number))}" for number in range(num_slices)]
        for path in paths:
            try:
                self._client.delete(path)
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
        self._drop(run_object.uid)

    def _drop(self, uid: str) -> None:
        with self._lock:
            self._uids.discard(uid)


def has_no_network(run_object: TrainingObject, pods: Iterable[PodObject]) -> bool:
    """Return whether a run is over, or suspended, and none of its pods is alive."""
    phase = run_object.state.status.phase
    return (phase.is_final or phase is Phase.SUSPENDED) and all(pod.is_over for pod in pods)
