"""Runs public traces through the production loop on the simulated cluster, for `completion` and `fairness`.

A run of one of Muri's jobs declares its duration (``expected_duration``), pays its overhead at every start, as in the
account ``resumed`` of ``benchmarks.baselines.replay``, saves at the stop notice, and reports a checkpoint every ten
minutes of work. Runs use whole GPUs of 8 nodes with 8 each, without sharing.
"""

import random
from collections.abc import Sequence

from benchmarks.baselines import shockwave
from benchmarks.baselines.muri import GPUS_PER_NODE, NUM_NODES, Figures, Submitted
from fairlead.control.outcomes import percentile
from fairlead.control.simulation import World, simulate
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.simulation import Interference, Programs, Simulation
from fairlead.specs.training import Training
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.snapshot import Phase
from fairlead.traces.arrivals import Arrival

# The policy by which all jobs may share GPUs.
SHARES = "production-sharing"
# By the name that `benchmarks.completion` gives them.
RULES = {
    "production": POLICIES["default"],
    "production-shortest": POLICIES["shortest"],
    "production-preempting": POLICIES["preempting"],
    "production-least-work": POLICIES["least-work"],
    SHARES: POLICIES["least-work"],
}
POOL = Pool(
    name="v100",
    nodes=NUM_NODES,
    hardware=Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=PoolGpu(model="V100", count=GPUS_PER_NODE)),
)
ONE_EACH = Pool(
    name="one",
    nodes=shockwave.NUM_GPUS,
    hardware=Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=PoolGpu(model="V100", count=1)),
)
# What sharing costs follows from the profiles of those that share.
SHARED = Simulation(
    name="replay",
    programs=Programs(checkpoint_every_s=600.0, save_s=0.0, step_s=60.0),
    interference=Interference(),
)
ASSUMED = Simulation(name="replay", programs=Programs(checkpoint_every_s=600.0, save_s=0.0, step_s=60.0))


def in_production(trace: Sequence[Submitted], policy: str, *, estimates: str = "known", seed: int = 0) -> Figures:
    """Figures of the whole trace.

    Args:
        policy: One of ``RULES``.
        estimates: ``known``; ``noisy``, declared wrong by up to 2 either way; or ``learnt``, declared by nobody.
    """
    chance = random.Random(seed)
    shares = policy == SHARES
    arrivals = [_arrival(job, estimates, chance, shares=shares) for job in trace]
    outcome = simulate(arrivals, (POOL,), World(simulations=(SHARED if shares else ASSUMED,)), rules=RULES[policy])
    assert all(run.phase is Phase.SUCCEEDED for run in outcome.runs), "a run did not come to its end"
    jcts_s = [run.completion_s for run in outcome.runs if run.completion_s is not None]
    p99_s = percentile(jcts_s, 0.99)
    assert p99_s is not None
    return Figures(average_jct_s=sum(jcts_s) / len(jcts_s), p99_jct_s=p99_s, makespan_s=outcome.ended_s)


def fair_in_production(
    trace: Sequence[shockwave.Submitted], policy: str, *, start_up_s: float, seed: int | None = None
) -> shockwave.Figures:
    """Figures of Shockwave's jobs on nodes of one GPU each.

    Args:
        policy: One of ``fairlead.state.scheduling_policy.POLICIES``.
        start_up_s: What each start of a run costs it.
        seed: Of declared times that are wrong by up to 2 either way; None where they are right.
    """
    chance = random.Random(seed)
    wrong = [1.0 if seed is None else shockwave.WRONG_BY ** chance.uniform(-1.0, 1.0) for _ in trace]
    arrivals = [
        Arrival(
            at_s=job.submitted_s,
            duration_s=job.duration_s,
            spec=Training(
                name=f"job-{job.uid}",
                run="replayed",
                nodes=job.num_gpus,
                resources=Resources(gpu=GpuRequest(milli=1000)),
                expected_duration_s=job.duration_s * factor,
            ),
        )
        for job, factor in zip(trace, wrong, strict=True)
    ]
    programs = Programs(start_up_s=start_up_s, checkpoint_every_s=shockwave.ROUND_S, save_s=0.0, step_s=30.0)
    world = World(simulations=(Simulation(name="replay", programs=programs),))
    outcome = simulate(arrivals, (ONE_EACH,), world, rules=POLICIES[policy])
    assert all(run.phase is Phase.SUCCEEDED for run in outcome.runs), "a run did not come to its end"
    ended_s = {run.name.removeprefix("job-"): run.ended_s for run in outcome.runs if run.ended_s is not None}
    return shockwave.figures(trace, ended_s)


def _arrival(job: Submitted, estimates: str, chance: random.Random, *, shares: bool) -> Arrival:
    nodes = max(1, -(-job.num_gpus // GPUS_PER_NODE))
    declared_s = {"known": job.work_s, "noisy": job.work_s * 2 ** chance.uniform(-1.0, 1.0)}.get(estimates)
    spec = Training(
        # Jobs of one size are of one kind, for the last number of a name does not count.
        name=f"{job.model.replace('_', '-')}-{job.uid}" if shares else f"gpus-{job.num_gpus}-{job.uid}",
        run="replayed",
        nodes=nodes,
        resources=Resources(gpu=GpuRequest(milli=1000 * (job.num_gpus // nodes)), colocate=shares),
        expected_duration_s=declared_s,
    )
    profile = job.profile if shares else None
    return Arrival(at_s=job.submitted_s, duration_s=job.work_s, spec=spec, start_up_s=job.overhead_s, profile=profile)
