"""The port of faces beyond a cluster's workloads: names, pods, output, and whether anybody looks after it.

The command line and the Python API speak to this alone; which cluster is behind it is chosen once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fairlead.cluster.output import EVERYTHING, Dropped, LogQuery, Watermark
from fairlead.cluster.port import EventRecord, LogLine, Spec, WorkloadStore
from fairlead.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fairlead.cluster.kept_code import KeptCode
    from fairlead.cluster.ledger_tables import Grouping, Payer
    from fairlead.cluster.selection import Selection
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.goodput import Goodput
    from fairlead.ledger.usage import Holder
    from fairlead.policy.kinds.retention import Retention
    from fairlead.specs.endpoint_engines import EndpointEngine
    from fairlead.specs.team import Team
    from fairlead.specs.training import Training
    from fairlead.specs.workload import WorkloadSpec
    from fairlead.state.access_keys import AccessKey
    from fairlead.state.series import Point
    from fairlead.state.snapshot import AnyWorkload, Node, Pod, Snapshot, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec in a cluster's own terms, before it is admitted.

    Attributes:
        directory: The one whose files are taken along; None when the pods need none or see it as it is.
        taken: What is taken along, as a sentence; None for nothing.
        notes: What was chosen, one sentence each.
    """

    spec: Training
    directory: Path | None = None
    taken: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCheckpoints:
    """Checkpoints that a run has in a directory of its own, which go when it is deleted.

    Attributes:
        steps: Of those that are complete, rising.
    """

    place: str
    steps: tuple[int, ...]
    num_bytes: int


class ClusterClient(WorkloadStore, Protocol):
    """A cluster as people meet it. What reads works without anybody looking after the cluster.

    It changes no pod and carries out no plan, which a loop with rights of its own does.
    """

    def snapshot(self) -> Snapshot:
        """Take a snapshot as a loop would see it, to plan with; as ``Cluster.snapshot``."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return when something has changed, or after the timeout; as ``Cluster.wait``."""
        ...

    @property
    def has_containers(self) -> bool:
        """Return whether programs run in images of their own, with their own ``/dev/shm``."""
        ...

    def endpoint_url(self, workload: AnyWorkload) -> str | None:
        """Return the address of an endpoint; None while it has none, or where it is over."""
        ...

    def has_gateway(self) -> bool:
        """Return whether requests for endpoints go through a gateway here; True where that cannot be told."""
        ...

    def engine_problem(self, engine: EndpointEngine) -> str | None:
        """Return why an engine cannot serve an endpoint here, as a clause; None where it may."""
        ...

    def access_keys(self) -> tuple[AccessKey, ...]:
        """Return the keys by which teams may ask endpoints, as far as this face shows teams."""
        ...

    def add_access_key(self, key: AccessKey) -> None:
        """Keep a key.

        Raises:
            Conflict: The team has one of that name.
        """
        ...

    def remove_access_key(self, team: str, name: str) -> None:
        """Keep a key no longer.

        Raises:
            NotFound: The team has none of that name.
        """
        ...

    def in_its_team(self, spec: Spec) -> Spec:
        """The spec with the team under which this cluster keeps it.

        Raises:
            Conflict: The team that it names is not the one that is meant.
        """
        ...

    def prepare(self, spec: Training, directory: Path | None) -> Prepared:
        """The spec as this cluster would keep it; nothing is sent.

        Args:
            directory: Of the spec file, to which a relative ``workdir`` is relative; None for a run that is there and
                keeps its files.

        Raises:
            Conflict: The working directory or the team cannot be honoured.
        """
        ...

    def launch(
        self, spec: Spec, *, directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        """Submit an admitted spec with its files, and see that somebody looks after it.

        Args:
            environ: What the program inherits, where it inherits anything; by default our own.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
        """
        ...

    def revised(self, workload: AnyWorkload, spec: Spec, *, directory: Path | None = None) -> Spec | None:
        """Return the spec that ``launch`` gives an unfinished workload that has the name already; nothing is kept.

        It is the one that the workload has where nothing changes; None where ``launch`` refuses the name.
        """
        ...

    def edited_code(self, workload: AnyWorkload, spec: WorkloadSpec, directory: Path | None) -> tuple[str, ...] | None:
        """Return the paths of the code of an endpoint's spec that differ from what ``launch`` would take along for
        another one; None where that cannot be told."""
        ...

    def change(self, workload: Workload, spec: Training, *, directory: Path | None = None) -> Workload:
        """Give a run that is there another admitted spec, and the files of a directory as they are now.

        Raises:
            NotFound, Conflict: As ``update``.
        """
        ...

    def has_files_of(self, workload: Workload, directory: Path) -> bool:
        """Return whether a workload has the files that are in a directory now; True where it sees the directory
        itself."""
        ...

    def own_checkpoints(self, workload: Workload) -> OwnCheckpoints | None:
        """Those that go when the workload is deleted; None where its checkpoints are not this cluster's to remove."""
        ...

    @property
    def account(self) -> str:
        """The owner of the nodes that costs are of, by a name that bills may have."""
        ...

    def costs(self, by: Grouping, *, since: float, until: float, daily: bool = False) -> Statement[Payer]:
        """The bills of nodes within a window, and who pays which part; of each day by itself if ``daily``.

        The lines sum to the bills. A cluster that keeps costs by day counts whole days.
        """
        ...

    def holders(self) -> Mapping[str, Holder]:
        """Runs that are charged, by uid, also those that were deleted since; those of the latest ``costs`` at least."""
        ...

    def cost_of(self, workload: Workload) -> int | None:
        """Micro-dollars of a workload so far; None where no price of what it held is known."""
        ...

    def goodput_of(self, workload: Workload) -> Goodput | None:
        """Return where the time of a workload went so far; None where nobody keeps that."""
        ...

    def teams(self) -> tuple[Team, ...]:
        """Return the teams that somebody described; none where we may not read them."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes that there are, held by others or not."""
        ...

    def get(self, uid: str) -> AnyWorkload:
        """One workload.

        Raises:
            NotFound: No such workload, or not any more.
        """
        ...

    def find(self, name: str, team: str | None = None) -> AnyWorkload:
        """The unfinished or else newest workload of that name; a uid, or the unique beginning of one, serves as well.

        Raises:
            NotFound: Nothing of that name; near names are told.
            Conflict: Several are meant.
        """
        ...

    def unfinished(self, team: str | None = None) -> tuple[AnyWorkload, ...]:
        """Workloads that are not over, oldest first; None for the team or teams that this face shows."""
        ...

    def select(self, selection: Selection, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        """Workloads that match, of those that this face shows; newest first."""
        ...

    def names(self) -> tuple[str, ...]:
        """Names of all workloads that this face shows, newest first."""
        ...

    def finished_names(self, team: str) -> frozenset[str]:
        """Names that a new workload of the team is not to have, because workloads that are over have them."""
        ...

    def history(self) -> tuple[tuple[AnyWorkload, ...], tuple[EventRecord, ...]]:
        """Workloads of all teams that we may look at, over or not, and what remains of their events."""
        ...

    def pods(self, uid: str) -> tuple[Pod, ...]:
        """All pods of a workload that are known, in order of attempt and index."""
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
        """Output in order of attempts and time; following ends when the workload is final and all was read.

        What is not there any more is told by a line of the stream ``f`` in its place.

        Args:
            query: Which lines; those that are there are read as they are asked for.
            stop: Whether to end now, while following.
            watermark: Kept up to date while following.
        """
        ...

    def series(self, uid: str) -> Mapping[str, tuple[Point, ...]]:
        """Metrics of a workload over time, by name; none of what is gone with the pods that told it."""
        ...

    def dropped_output(self, workload: Workload) -> tuple[Dropped, ...]:
        """List the output of a workload that is not there any more, as far as that can be told at once."""
        ...

    def code(self, uid: str) -> KeptCode:
        """Return what is kept of a workload's code, and what it ran with.

        Raises:
            NotFound: No such workload.
        """
        ...

    def where(self, workload: AnyWorkload) -> str:
        """Tell where a workload is, as the end of a sentence with a blank before it; nothing for the only place there
        is."""
        ...

    def named(self, *workloads: AnyWorkload) -> str:
        """The workloads as arguments of a command that means this cluster."""
        ...

    def kept_at(self, workload: AnyWorkload) -> str:
        """Tell where what is kept of a workload can be looked at by hand."""
        ...

    def space_of(self, workload: AnyWorkload) -> int | None:
        """Bytes on disk that go with a workload when it is deleted; None where that is not this face's to know."""
        ...

    def forget(self, workloads: Sequence[AnyWorkload]) -> tuple[bool, ...]:
        """Remove workloads that are over and all that is kept of them; False for what is not as given: it stays."""
        ...

    def sweep(self) -> None:
        """Remove what is left of workloads whose removal was cut short."""
        ...

    def keeps(self) -> Retention:
        """Tell what is kept of ended workloads without anybody asking; nothing said where this face cannot tell.

        Raises:
            ClusterError: The setting cannot be read.
        """
        ...

    def nudge(self) -> None:
        """Let whoever looks after the cluster look now, and start one where that is ours to do. Returns at once."""
        ...

    def unattended(self) -> str | None:
        """That nobody looks after the cluster, and what to do; None if somebody does, or when it cannot be told."""
        ...

    def trouble(self) -> str | None:
        """Tell why what is shown now may be old, such as an outage; None while all is well."""
        ...

    def another(self) -> ClusterClient:
        """The same cluster for another thread."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
