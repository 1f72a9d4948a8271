"""Gives the pods of runs that MultiKueue sent here from another cluster what they need beside themselves.

Kueue copies a Job and nothing else, and the run's Training stays where it was submitted. The runtime, the names by
which ranks meet and the policy that lets them are written here, owned by the Job, so that they go with it.
"""

import logging
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.engines.kueue import ORIGIN
from fairlead.cluster.kubernetes.engines.pod_template import QUEUE_NAME
from fairlead.cluster.kubernetes.engines.port import Object
from fairlead.cluster.kubernetes.informers.informers import Informers
from fairlead.cluster.kubernetes.informers.pod_index import RunKey
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name, render_bundle
from fairlead.cluster.kubernetes.manifests.services import render_service, render_slice
from fairlead.cluster.kubernetes.names import RUN, host_name, segment
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.frozen import dataclass
from fairlead.runtime.run_key import new_key
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.engines import Engine
from fairlead.specs.training import Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Status, Workload

log = logging.getLogger(__name__)

_Claim = tuple[str, RunKey]
"""The uid of a run of another cluster, and kind, namespace and name that pods here give it."""
RUNTIME = "fairlead-runtime"
"""The volume of a pod that holds the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guest:
    """A start of a run of another cluster.

    Attributes:
        run: A stand-in for its workload, with its name, namespace and uid.
        owner: Reference to the Job here.
    """

    run: Workload[Training]
    attempt: int
    owner: Object


class DispatchedRuns(Controller):
    """The hands of the operator for pods whose run another cluster keeps.

    Args:
        may_act: Whether we still lead; asked before each request.
    """

    name = "dispatched runs"
    stage = PassStage.FOLLOWING

    def __init__(self, client: Client, view: Informers, *, may_act: Callable[[], bool]) -> None:
        self._client = client
        self._view = view
        self._may_act = may_act
        self._marks = view.marks()
        self._guests: dict[_Claim, _Guest] = {}
        self._others: set[_Claim] = set()
        self._unsettled: set[str] = set()
        self._written: dict[_Claim, Mapping[int, str]] = {}

    def act(self, turn: Turn) -> None:
        """Give out what runs need whose pods have changed."""
        agent = turn.agent
        changed, _ = self._marks.take()
        for uid in changed | self._unsettled:
            self._unsettled.discard(uid)
            with self._view.isolation.of(f"dispatched run {uid}"):
                self._look_after(uid, agent)

    def _look_after(self, uid: str, agent: PodAgent) -> None:
        # Pods of several namespaces may name one run; each namespace has what its own pods need.
        guests = {} if self._view.find_any(uid) is not None else self._view.guests_of(uid)
        by_claim = {
            (uid, key): own
            for key, pods in guests.items()
            if (own := [pod for pod in pods if pod.engine == Engine.KUEUE])
        }
        self._forget(uid, by_claim)
        for claim, pods in by_claim.items():
            attempt = max(pod.attempt for pod in pods)
            live = [pod for pod in pods if pod.attempt == attempt and not pod.is_over and pod.told_at is None]
            if live and claim not in self._others and not self._is_equipped(claim, live):
                # What was given out may fail, so it is looked for again.
                self._unsettled.add(uid)
                agent.submit(uid, f"equip {live[0].key}", partial(self._equip, claim, live))

    def _forget(self, uid: str, but: Container[_Claim]) -> None:
        over = [claim for claim in {*self._guests, *self._others} if claim[0] == uid and claim not in but]
        for claim in over:
            self._guests.pop(claim, None)
            self._written.pop(claim, None)
        self._others.difference_update(over)

    def _is_equipped(self, claim: _Claim, pods: list[PodObject]) -> bool:
        """Return whether a start has what it needs, as far as its pods have addresses."""
        guest = self._guests.get(claim)
        return guest is not None and guest.attempt == pods[0].attempt and self._written.get(claim) == _addresses(pods)

    def _equip(self, claim: _Claim, pods: list[PodObject]) -> None:
        """Write what is missing for a start."""
        if not self._may_act():
            return
        guest = self._guests.get(claim)
        if guest is None or guest.attempt != pods[0].attempt:
            guest = self._admit(claim[0], pods[0])
            if guest is None:
                self._others.add(claim)
                return
            self._provide(guest)
            self._written[claim] = {}
            self._guests[claim] = guest
        addresses = _addresses(pods)
        if self._written[claim] != addresses:
            names = {host_name(guest.run.spec, guest.attempt, index): place for index, place in addresses.items()}
            place = f"/apis/discovery.k8s.io/v1/namespaces/{segment(guest.run.spec.team)}/endpointslices"
            self._apply(place, guest, render_slice(guest.run, 0, names))
            self._written[claim] = addresses

    def _admit(self, uid: str, pod: PodObject) -> _Guest | None:
        """Return the start that a pod is of, by its Job; None where MultiKueue did not bring it."""
        namespace, _, name = pod.key.partition("/")
        try:
            content = self._client.get(f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}")
            owner = next(
                owner_reference
                for owner_reference in content["metadata"].get("ownerReferences") or ()
                if owner_reference.get("controller")
            )
            job = self._client.get(f"/apis/batch/v1/namespaces/{segment(namespace)}/jobs/{segment(owner['name'])}")
        except (ApiError, StopIteration) as error:
            if isinstance(error, ApiError) and error.status != 404:
                raise
            return None
        labels = job["metadata"].get("labels") or {}
        if ORIGIN not in labels or RUN not in labels or QUEUE_NAME not in labels:
            return None
        volumes = content["spec"].get("volumes") or ()
        wanted = next((volume["configMap"]["name"] for volume in volumes if volume["name"] == RUNTIME), "")
        if wanted != bundle_name():
            log.warning(
                "the pods of %s from cluster %s begin with %s, and this operator has %s: install the same version of "
                "Fairlead in both clusters",
                job["metadata"]["name"], labels[ORIGIN], wanted, bundle_name(),
            )  # fmt: skip
        try:
            spec = Training(
                name=labels[RUN], team=namespace, run="elsewhere", nodes=job["spec"].get("completions") or 1,
                engine=Engine.KUEUE, queue=labels[QUEUE_NAME],
            )  # fmt: skip
        except BrokenRules as error:
            log.warning("Job %s/%s is not of a run of another cluster: %s", namespace, owner["name"], error)
            return None
        return _Guest(
            run=_stand_in(uid, spec),
            attempt=pod.attempt,
            owner={"apiVersion": "batch/v1", "kind": "Job", "name": owner["name"], "uid": job["metadata"]["uid"]},
        )

    def _provide(self, guest: _Guest) -> None:
        place = f"namespaces/{segment(guest.run.spec.team)}"
        try:
            self._client.create(f"/api/v1/{place}/configmaps", render_bundle(guest.run.spec.team))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        key = render_key(guest.run, guest.attempt, new_key())
        key["metadata"]["ownerReferences"] = [guest.owner]
        try:
            self._client.create(f"/api/v1/{place}/secrets", key)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        if guest.run.spec.nodes > 1:
            self._apply(f"/api/v1/{place}/services", guest, render_service(guest.run))
            self._apply(f"/apis/networking.k8s.io/v1/{place}/networkpolicies", guest, render_run_policy(guest.run))

    def _apply(self, place: str, guest: _Guest, content: dict[str, Any]) -> None:
        """Write an object as the Job's; one that an earlier start had becomes this one's."""
        content["metadata"]["ownerReferences"] = [guest.owner]
        self._client.apply(f"{place}/{segment(content['metadata']['name'])}", content)


def _addresses(pods: list[PodObject]) -> dict[int, str]:
    """Return the addresses of the pods of a start by their place in the gang."""
    return {pod.index: pod.address for pod in sorted(pods, key=lambda pod: pod.index) if pod.address}


def _stand_in(uid: str, spec: Training) -> Workload[Training]:
    """Return a workload of which only spec and uid are true."""
    reason = Reason(code=Code.HANDED_OVER, message="another cluster keeps it")
    status = Status(phase=Phase.RUNNING, reason=reason, since=0.0)
    return Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status, version=0, created_at=0.0)
