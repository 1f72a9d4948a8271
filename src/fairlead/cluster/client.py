"""The port of the command line and the Python API, beyond the workloads of a cluster: names, pods, output, attendance.

The command line and the Python API use this port alone; the cluster behind it is chosen once.

See decision 206.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from fairlead.cluster.output import EVERYTHING, Dropped, LogQuery, Watermark
from fairlead.cluster.port import EventRecord, LogLine, Spec, WorkloadStore
from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fairlead.cluster.kept_code import KeptCode
    from fairlead.cluster.ledger_tables import CostGrouping, Payer, Price
    from fairlead.cluster.local.home import Home
    from fairlead.cluster.selection import RunSelection
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.goodput import Goodput
    from fairlead.ledger.usage import Holder
    from fairlead.policy.kinds.retention import Retention
    from fairlead.specs.dataset import Dataset
    from fairlead.specs.endpoint_engines import EndpointEngine
    from fairlead.specs.sweep_engines import SweepEngine
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training
    from fairlead.specs.workload import WorkloadSpec
    from fairlead.state.access_keys import AccessKey
    from fairlead.state.series import Point
    from fairlead.state.snapshot import AnyWorkload, Node, Pod, Snapshot, Workload


class CheckPrograms(StrEnum):
    """Programs that a check of a spec may start, such as the interpreter that it names.

    Attributes:
        ANY: Those of the spec, in its environment, as its run will.
        INSTALLED: Those outside of its working directory, unless it changes where programs and modules are looked up.
        NONE: None; nothing is written either.
        ELSEWHERE: None, and no command is looked up here, as it runs on other machines.
    """

    ANY = "any"
    INSTALLED = "installed"
    NONE = "none"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec resolved for a cluster, before admission.

    Attributes:
        directory: The directory whose files are packed; None when the pods need none or see it directly.
        taken: A sentence that names the packed files; None for none.
        notes: Choices that were made, one sentence each.
    """

    spec: Training
    directory: Path | None = None
    taken: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckpoints:
    """Checkpoints in a directory of the run itself, which are deleted with the run.

    Attributes:
        steps: Steps of the complete ones, ascending.
    """

    place: str
    steps: tuple[int, ...]
    num_bytes: int


class OwnMachine(Protocol):
    """The optional port of what a client knows of this machine itself: its files and its prices."""

    @property
    def home(self) -> Home:
        """The directories in which everything is stored."""
        ...

    def prices(self) -> Sequence[Price]:
        """Return the prices that were set; empty if nothing is billed."""
        ...

    def edited(self, uid: str) -> tuple[str, ...]:
        """Return the sources of a run that differ in its directory from the newest code that was kept for it."""
        ...

    def restart_with_edits(self, uid: str, edited: tuple[str, ...]) -> bool:
        """Keep the current code of a run, and restart the run with it; return whether it restarts.

        A run that has failed is resumed. One that waits starts with that code. One that is over otherwise stays so.
        """
        ...


class PublishedCostDays(Protocol):
    """The optional port of a cluster whose operator publishes costs a day at a time."""

    def costs_at(self, since: float, until: float) -> tuple[float, str | None]:
        """Return the time up to which costs are known, and the team whose costs they are; None for all teams."""
        ...

    def cost_days(self, namespace: str | None, before: float) -> list[tuple[str, str]]:
        """Return the objects of days that ended before a time: namespaces and names, the oldest day first.

        Args:
            namespace: One namespace; None for all.

        Raises:
            NotAllowed: The user may not list them.
        """
        ...

    def remove_cost_days(self, days: Sequence[tuple[str, str]]) -> int:
        """Remove these objects and return how many still existed. The ledger keeps their source data.

        Raises:
            NotAllowed: The user may not remove them.
        """
        ...


class ClusterClient(WorkloadStore, Protocol):
    """The user's view of a cluster. Read calls work even while no control loop is running.

    It changes no pod and carries out no plan; a control loop with rights of its own does that.
    """

    def snapshot(self) -> Snapshot:
        """Take a snapshot as a control loop would see it, for planning; as ``Cluster.snapshot``."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return after a change or the timeout; as ``Cluster.wait``."""
        ...

    @property
    def machine(self) -> OwnMachine | None:
        """Return what is known of this machine, if its runs are those of this client; None for a cluster."""
        ...

    @property
    def published_costs(self) -> PublishedCostDays | None:
        """Return the published costs of a cluster; None where bills are read from the ledger itself."""
        ...

    @property
    def has_containers(self) -> bool:
        """Return whether programs run in images of their own, with their own ``/dev/shm``."""
        ...

    def endpoint_url(self, workload: AnyWorkload) -> str | None:
        """Return the URL of an endpoint; None while it has none, and once the endpoint is over."""
        ...

    def has_gateway(self) -> bool:
        """Return whether requests to endpoints go through a gateway here; True where that is unknown."""
        ...

    def engine_problem(self, engine: EndpointEngine | SweepEngine) -> str | None:
        """Return the reason, as a clause, why an engine cannot be used here; None if it can."""
        ...

    def access_keys(self) -> tuple[AccessKey, ...]:
        """Return the access keys of teams for endpoints, as far as this client shows teams."""
        ...

    def add_access_key(self, key: AccessKey) -> None:
        """Store a key.

        Raises:
            Conflict: The team already has a key of that name.
        """
        ...

    def remove_access_key(self, team: str, name: str) -> None:
        """Delete a key.

        Raises:
            NotFound: The team has no key of that name.
        """
        ...

    def in_its_team(self, spec: Spec) -> Spec:
        """Return the spec with the team under which this cluster stores it.

        Raises:
            Conflict: The spec names a team other than the selected one.
        """
        ...

    def prepare(
        self, spec: Training, directory: Path | None, *, probing: CheckPrograms = CheckPrograms.ANY
    ) -> Prepared:
        """Return the spec as this cluster would store it; nothing is sent.

        Args:
            directory: Directory of the spec file, to which a relative ``workdir`` is relative; None for an existing
                run, which keeps its files.
            probing: Programs that may be started to check the spec.

        Raises:
            Conflict: The working directory or the team cannot be honoured.
        """
        ...

    def launch(
        self, spec: Spec, *, directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        """Submit an admitted spec with its files, and ensure that a control loop attends to it.

        Args:
            environ: Environment that the program inherits, where it inherits any; by default that of this process.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
        """
        ...

    def revised(self, workload: AnyWorkload, spec: Spec, *, directory: Path | None = None) -> Spec | None:
        """Return the spec that ``launch`` gives the unfinished workload that already has the name; nothing is stored.

        An unchanged spec is that of the workload; None where ``launch`` refuses the name.
        """
        ...

    def edited_code(self, workload: AnyWorkload, spec: WorkloadSpec, directory: Path | None) -> tuple[str, ...] | None:
        """Return the paths in which an endpoint's stored code differs from what ``launch`` would store for a spec.

        None where that cannot be determined.
        """
        ...

    def change(self, workload: Workload[Spec], spec: Spec, *, directory: Path | None = None) -> Workload[Spec]:
        """Replace the spec of an existing run or sweep by another admitted one, with the current files of a directory.

        Raises:
            NotFound, Conflict: As ``update``.
        """
        ...

    def has_files_of(self, workload: Workload, directory: Path) -> bool:
        """Return whether a workload has the current files of a directory; True where it sees the directory directly."""
        ...

    def own_checkpoints(self, workload: Workload) -> OwnCheckpoints | None:
        """Return the checkpoints that are deleted with the workload; None where this cluster does not remove them."""
        ...

    @property
    def account(self) -> str:
        """Return the owner of the nodes, by the name that bills use."""
        ...

    def costs(self, by: CostGrouping, *, since: float, until: float, daily: bool = False) -> Statement[Payer]:
        """Return the bills of nodes within a window, divided among payers; separately for each day if ``daily``.

        The lines sum to the bills. A cluster that stores costs by day counts whole days.
        """
        ...

    def holders(self) -> Mapping[str, Holder]:
        """Return charged runs by uid, deleted ones included; at least those of the latest ``costs``."""
        ...

    def cost_of(self, workload: Workload) -> int | None:
        """Return the cost of a workload so far in micro-dollars; None if no price is known for what it held."""
        ...

    def goodput_of(self, workload: Workload) -> Goodput | None:
        """Return the useful and lost time of a workload so far; None where it is not recorded."""
        ...

    def teams(self) -> tuple[Team, ...]:
        """Return the described teams; empty without the right to read them."""
        ...

    def datasets(self, team: str | None = None) -> tuple[Dataset, ...]:
        """Return the data sets of a team and those that others share with it; None for the teams of this client."""
        ...

    def store_dataset(self, dataset: Dataset, before: Dataset | None) -> None:
        """Store a data set of the team, in place of ``before``, which has its name.

        Raises:
            NotAllowed: The user may not write any there.
        """
        ...

    def remove_dataset(self, dataset: Dataset) -> None:
        """Remove a data set of the team; its objects stay where they are.

        Raises:
            NotFound: It is not there any more.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the cluster, in use or not."""
        ...

    def cordon(self, node: str, reason: str) -> None:
        """Place no more pods on a node.

        Args:
            reason: One line for people; empty for none.

        Raises:
            NotFound: There is no such node.
            NotAllowed: The user may not change nodes, or the cluster has only one.
        """
        ...

    def uncordon(self, node: str) -> None:
        """Place pods on a node again, also if it was taken out; raises as ``cordon`` does."""
        ...

    def get(self, uid: str) -> AnyWorkload:
        """Return one workload.

        Raises:
            NotFound: No such workload, or it was deleted.
        """
        ...

    def find(self, name: str, team: str | None = None) -> AnyWorkload:
        """Return the unfinished or else newest workload of a name; a uid, or its unique prefix, serves as well.

        Raises:
            NotFound: No workload has that name; the message lists similar names.
            Conflict: Several workloads match.
        """
        ...

    def unfinished(self, team: str | None = None) -> tuple[AnyWorkload, ...]:
        """Return unfinished workloads, oldest first; None for the team or teams that this client shows."""
        ...

    def select(self, selection: RunSelection, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        """Return the matching workloads among those that this client shows, newest first."""
        ...

    def names(self) -> tuple[str, ...]:
        """Return the names of all workloads that this client shows, newest first."""
        ...

    def finished_names(self, team: str) -> frozenset[str]:
        """Return names that a new workload of the team must not take, since finished workloads have them."""
        ...

    def history(self) -> tuple[tuple[AnyWorkload, ...], tuple[EventRecord, ...]]:
        """Return the workloads of all teams that the user may read, finished ones included, with remaining events."""
        ...

    def pods(self, uid: str) -> tuple[Pod, ...]:
        """Return all known pods of a workload, in order of attempt and index."""
        ...

    def logs(
        self,
        uid: str,
        query: LogQuery = EVERYTHING,
        *,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
        watermark: Watermark | None = None,
    ) -> Iterator[LogLine]:
        """Yield output in order of attempts and time; following ends once the workload is final and its output read.

        A line of the stream ``f`` stands in the place of output that was dropped.

        Args:
            query: Selects lines; lines are read lazily, as the caller consumes them.
            stop: Polled while following; True ends it.
            watermark: Updated while following.
        """
        ...

    def series(self, uid: str) -> Mapping[str, tuple[Point, ...]]:
        """Return the metrics of a workload over time, by name; without those lost with the pods that reported them."""
        ...

    def dropped_output(self, workload: Workload) -> tuple[Dropped, ...]:
        """Return the dropped output of a workload, as far as that is known without reading it all."""
        ...

    def code(self, uid: str) -> KeptCode:
        """Return the stored code of a workload and the environment it ran with.

        Raises:
            NotFound: No such workload.
        """
        ...

    def where(self, workload: AnyWorkload) -> str:
        """Return the place of a workload as the end of a sentence, with a leading blank; empty if there is only one."""
        ...

    def named(self, *workloads: AnyWorkload) -> str:
        """Return the workloads as command-line arguments that select this cluster."""
        ...

    def kept_at(self, workload: AnyWorkload) -> str:
        """Return the place in which a user can inspect by hand what is stored of a workload."""
        ...

    def space_of(self, workload: AnyWorkload) -> int | None:
        """Return the bytes on disk that are freed when the workload is deleted; None where this client cannot know."""
        ...

    def forget(self, workloads: Sequence[AnyWorkload]) -> tuple[bool, ...]:
        """Delete finished workloads with all their data; False for each that has changed since, which stays."""
        ...

    def sweep(self) -> None:
        """Delete the remains of workloads whose deletion was interrupted."""
        ...

    def keeps(self) -> Retention:
        """Return the automatic retention of finished workloads; all unset where this client does not know.

        Raises:
            ClusterError: The setting cannot be read.
        """
        ...

    def nudge(self) -> None:
        """Trigger a pass of the control loop, and start a loop where this client does so. Returns at once."""
        ...

    def unattended(self) -> str | None:
        """Return a warning that no control loop is running, with a remedy; None if one is, or if that is unknown."""
        ...

    def trouble(self) -> str | None:
        """Return the reason why shown data may be stale, such as an outage; None without one."""
        ...

    def another(self) -> ClusterClient:
        """Return a client of the same cluster for another thread."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
