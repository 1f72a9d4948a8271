"""Builders of small worlds: pools, what is assumed of them, and runs."""

from fairlead.cluster.simulated.accounts import PodTime
from fairlead.control.outcomes import Outcome
from fairlead.control.simulation import World
from fairlead.policy.data.caching import ReadDemand
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.specs.pool import CapacityType, Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.simulation import Failures, Interference, Programs, Provisioning, Reclaims, Simulation, Store
from fairlead.specs.training import Checkpoint, Training
from fairlead.traces.arrivals import Arrival


def pool(name: str = "a", *, nodes: int = 2, gpus: int = 4, price: float | None = 8.0, spot: bool = False) -> Pool:
    return Pool(
        name=name,
        nodes=nodes,
        hardware=Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=PoolGpu(model="A100", count=gpus)),
        capacity_type=CapacityType.SPOT if spot else CapacityType.ON_DEMAND,
        price_per_hour=price,
    )


def run(
    name: str,
    at_s: float,
    duration_s: float,
    *,
    gpus: float = 4,
    nodes: int = 1,
    team: str = "t",
    every_s: float | None = None,
    profile: StageProfile | None = None,
    reads: ReadDemand | None = None,
) -> Arrival:
    resources = Resources(gpu=GpuRequest(milli=round(1000 * gpus)), cpu_milli=1000)
    spec = Training(
        name=name, team=team, run="x", nodes=nodes, resources=resources, checkpoint=Checkpoint(every_s=every_s)
    )
    return Arrival(at_s=at_s, duration_s=duration_s, spec=spec, profile=profile, reads=reads)


def world(
    *,
    failures: Failures | None = None,
    reclaims: Reclaims | None = None,
    provisioning: Provisioning | None = None,
    programs: Programs | None = None,
    interference: Interference | None = None,
    store: Store | None = None,
    seed: int = 0,
) -> World:
    assumed = Simulation(
        name="w",
        failures=failures,
        reclaims=reclaims,
        provisioning=provisioning,
        programs=programs,
        interference=interference,
        store=store,
    )
    return World(simulations=(assumed,), seed=seed)


def parts(pod: PodTime) -> float:
    """Seconds of a pod that are accounted for."""
    return pod.start_up_s + pod.kept_s + pod.redone_s + pod.saving_s + pod.slowed_s + pod.stopping_s


def overlaps(outcome: Outcome) -> list[tuple[PodTime, PodTime]]:
    """Pods of different starts of one run that were alive at once."""
    found = []
    by_run: dict[str, list[PodTime]] = {}
    for pod in sorted(outcome.pods, key=lambda each: (each.created_at, each.ended_at)):
        before = by_run.setdefault(pod.workload_uid, [])
        found += [
            (other, pod) for other in before if other.attempt != pod.attempt and other.ended_at > pod.created_at + 1e-6
        ]
        before.append(pod)
    return found
