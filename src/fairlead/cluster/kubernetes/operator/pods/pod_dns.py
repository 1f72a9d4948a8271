"""Publishes DNS names of gangs' pods: rank 0's at once, as all ranks wait for it, the others' together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.objects import PodObject
from fairlead.cluster.kubernetes.manifests.services import MOST_ENDPOINTS, render_slice
from fairlead.cluster.kubernetes.names import host_name, is_alone, segment
from fairlead.cluster.kubernetes.workloads.run_record import TrainingObject
from fairlead.state.snapshot import Phase, Workload

EVERY_S = 5.0
# A gang that has run this long has met; the previous leader has published its addresses.
MET_S = 60.0
Addresses = dict[str, str]


@dataclass(slots=True)
class _Written:
    """The content of a run's EndpointSlices, by their numbers, since ``at``."""

    at: float
    slices: dict[int, Addresses] = field(default_factory=dict)


class Addressing:
    """Writes a run's EndpointSlices as its pods get their addresses.

    Args:
        submit: Queues work for a run, once under each name.
    """

    def __init__(self, client: Client, submit: Callable[[str, str, Callable[[], None]], object]) -> None:
        self._client = client
        self._submit = submit
        self._written: dict[str, _Written] = {}

    def look(self, run_object: TrainingObject, objects: Mapping[str, PodObject], now: float) -> bool:
        """Write new addresses if it is time; return False to check again later."""
        gang, run = run_object.state.gang, run_object.workload
        if gang is None or run is None or run.status.phase not in (Phase.STARTING, Phase.RUNNING):
            self._written.pop(run_object.uid, None)  # they are removed with its Service
            return True
        if is_alone(run.spec):
            return True
        known = self._written.get(run_object.uid)
        if known is None:
            if run.status.phase is Phase.RUNNING and now - run.status.since > MET_S:
                return True
            known = self._written[run_object.uid] = _Written(at=0.0)
        pods = sorted(
            (
                pod
                for pod in objects.values()
                if gang.has(pod.attempt, pod.index, pod.replacement) and pod.address and not pod.is_over
            ),
            key=lambda pod: pod.index,
        )
        wanted: dict[int, Addresses] = {}
        for pod in pods:
            wanted.setdefault(pod.index // MOST_ENDPOINTS, {})[host_name(run.spec, pod.attempt, pod.index)] = (
                pod.address
            )
        news = {number: names for number, names in wanted.items() if known.slices.get(number) != names}
        if not news:
            return True
        is_first = pods[0].index == 0 and host_name(run.spec, gang.attempt, 0) not in known.slices.get(0, {})
        if not is_first and len(pods) < len(gang.nodes) and now - known.at < EVERY_S:
            return False
        known.at = now
        for number, names in news.items():
            self._submit(
                run_object.uid, f"names {run_object.key} {number}", partial(self._write, run, known, number, names)
            )
        return False

    def forget(self, uid: str) -> None:
        """Forget a run that is gone with its slices."""
        self._written.pop(uid, None)

    def _write(self, run: Workload, known: _Written, number: int, names: Addresses) -> None:
        content = render_slice(run, number, names)
        place = f"/apis/discovery.k8s.io/v1/namespaces/{segment(run.spec.team)}/endpointslices"
        self._client.apply(f"{place}/{segment(content['metadata']['name'])}", content)
        known.slices[number] = names
