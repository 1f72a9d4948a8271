"""Judges a workspace: a run of one process that is not meant to end, and is suspended while nobody works in it.

It is Running once its server answers. A server that was shut down from within suspends it; any other end restarts it,
like a replica of an endpoint, as its home is whole, unless the server is not installed.
"""

from dataclasses import replace

from fairlead.policy.kinds import training
from fairlead.policy.kinds.failures import Blame, diagnose
from fairlead.policy.kinds.record import LeafKind
from fairlead.policy.kinds.replica import restart_of, wait_for_probe
from fairlead.policy.kinds.retries import Again, GiveUp
from fairlead.policy.queue.changes import stop
from fairlead.specs.workspace import Workspace
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Pod, PodPhase, Snapshot, Workload

NOT_INSTALLED = 127
"""Exit code of a workspace's process where there is no server, as ``fairlead.runtime.workspace`` ends then."""
NOT_BY_RESTART = "a restart would not install it"


def judge(workload: Workload, pods: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    """Return the change that a workspace needs apart from placement, or None."""
    status = workload.status
    if workload.intent is not Intent.RUN or status.phase not in (Phase.STARTING, Phase.RUNNING):
        return training.judge(workload, pods, snapshot, now)
    own = tuple(pod for pod in pods if pod.attempt == status.attempt)
    live = tuple(pod for pod in pods if not pod.phase.is_final)
    if any(pod.phase is PodPhase.SUCCEEDED and pod.terminating_since is None for pod in own):
        remedy = f"`fairlead resume {workload.spec.name}` continues it, with its home as it is."
        why = Reason(code=Code.SUSPENDED, message="suspended, as its server was shut down from within", remedy=remedy)
        return replace(stop(workload, live, Phase.SUSPENDED, why, why, now), intent=Intent.SUSPEND)
    failure = diagnose(workload.gang, own, snapshot.nodes, workload.progress, now)
    if failure is not None and failure.blame is not Blame.QUOTA:
        verdict: Again | GiveUp = restart_of(workload, now)
        if any(exit_.exit_code == NOT_INSTALLED for pod in own for exit_ in pod.exits):
            counts = status.failures
            verdict = GiveUp(why=NOT_BY_RESTART, program_failures=counts.program + 1, disruptions=counts.disruptions)
        return training.after_failure(workload, live, failure, verdict, now)
    change = training.judge(workload, pods, snapshot, now)
    after = None if change is None or change.status is None else change.status.phase
    if status.phase is Phase.STARTING and after is Phase.RUNNING:
        return wait_for_probe(workload, own, now)
    return change


KIND = LeafKind(spec=Workspace, judge=judge)
