"""What the contract suite needs of an adapter beyond the port itself, and short words for what the tests do often."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from fairlead.cluster.port import Cluster, LogLine, WorkloadStore
from fairlead.policy.kinds.table import leaf
from fairlead.specs.training import Training
from fairlead.state.snapshot import Phase, Pod, PodPhase, Workload
from tests.builders import change, members, plan, status


class WholeCluster(Cluster, WorkloadStore, Protocol):
    """Both sides of an adapter."""


class Harness(Protocol):
    """One adapter under test, with its world around it.

    Attributes:
        moment_s: Seconds in which the cluster surely starts or ends a pod and notices that; tests count in these.
    """

    moment_s: float

    @property
    def cluster(self) -> WholeCluster:
        """The adapter as it is now; another object after a crash."""
        ...

    def program(
        self,
        duration_s: float = math.inf,
        *,
        exit_code: int = 0,
        signal: int | None = None,
        ignores_term: bool = False,
        steps: int = 0,
        output: tuple[str, ...] = (),
    ) -> Training:
        """A run of one pod and one rank that prints, works, reports that many steps evenly, and ends like this.

        Without ``ignores_term``, SIGTERM ends it at once.
        """
        ...

    def now(self) -> float:
        """The cluster's clock."""
        ...

    def advance(self, seconds: float) -> None:
        """Let so much time go by, with whatever makes pods real at work."""
        ...

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time go by until the condition holds; fail after a good while."""
        ...

    def crash(self) -> None:
        """The adapter's own process dies as by SIGKILL, pods live on, and a new one takes over."""
        ...

    def lose(self, pod_uid: str) -> None:
        """What watches over a running pod vanishes, so that nobody can say how its ranks ended."""
        ...

    def num_starts(self, pod_uid: str) -> int:
        """How often the program of the pod's first rank really began."""
        ...

    def logs(self, uid: str) -> list[LogLine]:
        """Output of a workload; skips the test where the adapter keeps none."""
        ...

    def break_down(self) -> None:
        """What is below the adapter fails from now on; skips the test where nothing can fail."""
        ...


def start(harness: Harness, spec: Training) -> Workload:
    """Submit a run and place its whole gang on the first node, as the loop would."""
    return place(harness, harness.cluster.submit(spec))


def place(harness: Harness, workload: Workload, *, attempt: int = 0, num_nodes: int | None = None) -> Workload:
    """Create the whole gang of a start; of an elastic one so many members."""
    node = harness.cluster.snapshot().nodes[0].name
    starting = status(Phase.STARTING, attempt=attempt, nodes=num_nodes)
    gang = members(replace(workload, status=starting).gang, node, attempt=attempt)
    assert apply(harness, workload, status=starting, create=gang)
    return see(harness, workload)


def apply(harness: Harness, workload: Workload, **changes: Any) -> bool:
    """Apply one change at the version that is true now."""
    return harness.cluster.apply(plan(change(see(harness, workload), **changes)))[0]


def see(harness: Harness, workload: Workload) -> Workload:
    """The workload as it is now."""
    return leaf(next(each for each in harness.cluster.workloads() if each.uid == workload.uid))


def shown(harness: Harness) -> set[str]:
    """Uids of the workloads that a snapshot shows."""
    return {workload.uid for workload in harness.cluster.snapshot().workloads}


def pods(harness: Harness, workload: Workload) -> dict[str, Pod]:
    """The workload's pods in a snapshot, by ``<attempt>-<index>``."""
    seen = [pod for pod in harness.cluster.snapshot().pods if pod.workload_uid == workload.uid]
    return {f"{pod.attempt}-{pod.index}": pod for pod in sorted(seen, key=lambda pod: (pod.attempt, pod.index))}


def only(harness: Harness, workload: Workload) -> Pod:
    """The one pod of a workload."""
    (pod,) = pods(harness, workload).values()
    return pod


def await_running(harness: Harness, workload: Workload) -> None:
    """Until every pod runs and the first line of every program was reached."""

    def running() -> bool:
        seen = pods(harness, workload).values()
        return all(pod.phase is PodPhase.RUNNING and harness.num_starts(pod.uid) == 1 for pod in seen)

    harness.until(running)


def await_end(harness: Harness, workload: Workload) -> None:
    """Until no process of any pod is alive."""
    harness.until(lambda: all(pod.phase.is_final for pod in pods(harness, workload).values()))


def freeze(value: object) -> str:
    """All that can be seen in a value."""
    return repr(value)
