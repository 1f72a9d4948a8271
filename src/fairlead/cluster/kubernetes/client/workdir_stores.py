"""Stores working directories that are too large for the API beside the checkpoints of their run.

That storage outlives pods and is reachable from them, so nothing else has to be set up. An object store is written with
the local user's credentials. A volume is reachable only from pods, so a small separate run mounts it as the run will,
and receives the archive through `exec`; this needs no right that a team's user does not have.

See decision 14.
"""

import json
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.streams import PIECE_BYTES, ExecStream, exec_stream
from fairlead.cluster.kubernetes.client.operator_lease import unattended
from fairlead.cluster.kubernetes.client.rank_pods import RankPod, member_of
from fairlead.cluster.kubernetes.informers.informers import trainings_path
from fairlead.cluster.kubernetes.manifests.pod_environment import RUNTIME
from fairlead.cluster.kubernetes.manifests.volumes import volume_at
from fairlead.cluster.kubernetes.manifests.workdir import LargeArchive
from fairlead.cluster.kubernetes.workloads.run_record import read_training
from fairlead.errors import ClusterError, Conflict
from fairlead.frozen import dataclass
from fairlead.runtime.archives import ENDING, READY
from fairlead.runtime.errors import StoreUnavailable
from fairlead.runtime.places import is_url, open_place, translated, upload
from fairlead.specs.constraints import NAME
from fairlead.specs.overlay import RANKS, overlay
from fairlead.specs.resources import Resources
from fairlead.specs.training import Checkpoint, Launch, Retry, Training
from fairlead.state.snapshot import Phase, Workload
from fairlead.text.quantities import describe_duration

FOLDER = "fairlead-workdirs"
SUFFIX = "-files"
NAME_MOST = NAME.max_length
START_MOST_S = 600.0
SEND_MOST_S = 3600.0
LOOK_EVERY_S = 0.5
READY_MOST_S = 60.0
OVER_S = 20.0
Submit = Callable[[Any, Mapping[str, str]], Workload[Any]]
"""Submits a workload of any kind, with annotations."""


class ArchiveStore(Protocol):
    """Storage for archives that the pods of a run can reach."""

    @property
    def description(self) -> str:
        """The store's name for messages."""
        ...

    def keep(self, archive: LargeArchive, folder: str, used: frozenset[str], client: Client, submit: Submit) -> str:
        """Store an archive unless it is stored already, and return the path or URL at which pods find it.

        Args:
            folder: Name unique to this namespace of this cluster.
            used: Digests of needed archives; others in the folder are removed when this one is uploaded.
            submit: Submits a run, for a store that only pods can reach.

        Raises:
            ClusterError: The archive cannot be stored.
            RuntimeFault: An object store cannot be reached, or needs another package on this machine.
        """
        ...


def store_of(spec: Training) -> ArchiveStore | None:
    """Return the store of a run's checkpoints; None if it does not outlive pods."""
    to = spec.checkpoint.to
    if to is None:
        return None
    if is_url(to):
        return ObjectStore(place=to.rstrip("/"))
    path = to.removeprefix("file://")
    volume = volume_at(spec, path)
    return None if volume is None else Volume(spec=spec, path=path, volume=volume)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """An object store that fsspec supports, by its URL."""

    place: str

    @property
    def description(self) -> str:
        return self.place

    def keep(self, archive: LargeArchive, folder: str, used: frozenset[str], client: Client, submit: Submit) -> str:
        place = f"{self.place}/{FOLDER}/{folder}"
        system, root = open_place(place, what="working directories")
        system.invalidate_cache()
        try:
            listed = translated(lambda: system.ls(root, detail=True), f"{place} cannot be listed")
        except FileNotFoundError:
            listed = []
        sizes = {str(entry["name"]).rpartition("/")[2]: int(entry["size"] or 0) for entry in listed}
        name = archive.digest + ENDING
        if sizes.get(name) != archive.path.stat().st_size:
            goal = f"{root}/{name}"
            translated(lambda: upload(system, archive.path, goal), f"the files cannot be sent to {place}")
        for other in sizes:
            if other.endswith(ENDING) and other.removesuffix(ENDING) not in used | {archive.digest}:
                _remove(system, f"{root}/{other}", place)
        return f"{place}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory of a volume that the run's pods mount.

    Attributes:
        path: Path in the run's pods.
        volume: Name of the volume in the spec.
    """

    spec: Training
    path: str
    volume: str

    @property
    def description(self) -> str:
        return f"the volume `{self.volume}` at {self.path}"

    def keep(self, archive: LargeArchive, folder: str, used: frozenset[str], client: Client, submit: Submit) -> str:
        path = str(PurePosixPath(self.path) / FOLDER / folder / (archive.digest + ENDING))
        alone = unattended(client)
        if alone is not None:
            raise ClusterError(
                f"The working directory goes to {self.description} through a pod, which needs an operator: {alone}"
            )
        keep = [f"{digest}{ENDING}" for digest in sorted(used)]
        run = submit(receiving(self.spec, path), {})
        try:
            self._hand_over(client, run, archive.path, path, keep)
        finally:
            client.delete(trainings_path(run.spec.team, run.spec.name), {"preconditions": {"uid": run.uid}})
        return path

    def _hand_over(self, client: Client, run: Workload, source: Path, path: str, keep: list[str]) -> None:
        """Wait until the receiving run has succeeded, which it does once the archive is there, and send the archive."""
        deadline, sending = time.monotonic() + START_MOST_S, None
        late = f" after {describe_duration(START_MOST_S)}"
        while True:
            now = _read(client, run)
            phase, why = now.status.phase, now.status.reason.message
            if phase is Phase.SUCCEEDED:
                return
            is_late = time.monotonic() > deadline
            is_current = sending is not None and sending.attempt == now.status.attempt
            # If the archive exists already, the pod ends before anything can be sent, which is no problem; a lost pod
            # is replaced by another one.
            if sending is not None and is_current and sending.problem and (phase.is_final or sending.is_long_over):
                raise ClusterError(f"The working directory cannot be taken to {self.description}: {sending.problem}")
            if phase.is_final or (sending is None and is_late):
                raise ClusterError(
                    f"The working directory cannot be taken to {self.description}: {run.spec.name}, the run that takes "
                    f"it in, is {phase.value}{late if is_late else ''}: {why}."
                )
            if phase is Phase.RUNNING and not is_current:
                sending = _begin(client, now, source, path, keep)
            time.sleep(LOOK_EVERY_S)


class _Sending(threading.Thread):
    """Sends an archive to a pod that executes `receive`.

    It is a thread, because the API server may keep such a stream open after its command has died.
    """

    def __init__(self, client: Client, member: RankPod, attempt: int, source: Path, path: str, keep: list[str]) -> None:
        super().__init__(name="files", daemon=True)
        self.attempt = attempt
        self.problem = ""
        self._over_at: float | None = None
        self._client, self._member, self._source, self._path, self._keep = client, member, source, path, keep

    @property
    def is_long_over(self) -> bool:
        """True once it has ended for long enough that its problem is not transient."""
        return self._over_at is not None and time.monotonic() - self._over_at > OVER_S

    def run(self) -> None:
        try:
            self.problem = self._send()
        except ClusterError as error:
            self.problem = str(error)
        self._over_at = time.monotonic()

    def _send(self) -> str:
        """Send the archive and return the problem; empty if it arrived."""
        member, output = self._member, bytearray()
        argv = (member.python, RUNTIME, "receive", self._path)
        opened = exec_stream(self._client.access, member.path, argv, container=RANKS, stdin=True, tty=False)
        with opened as stream:
            ready = threading.Event()

            def hear(data: bytes) -> None:
                if READY.encode() in data:
                    ready.set()

            pump = threading.Thread(target=self._pump, args=(stream, ready), name="files out", daemon=True)
            pump.start()
            code = stream.run(hear, output.extend)
        words = output.decode(errors="replace").strip() or f"{' '.join(argv)} ended with exit code {code}"
        return words if code != 0 else ""

    def _pump(self, stream: ExecStream, ready: threading.Event) -> None:
        """Copy the archive to the stream; the end of the stream reports a failure."""
        if not ready.wait(READY_MOST_S):
            return
        try:
            header = {"size": self._source.stat().st_size, "keep": self._keep}
            stream.write(json.dumps(header).encode() + b"\n")
            with self._source.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    stream.write(piece)
        except ClusterError:
            return


def _begin(client: Client, run: Workload, source: Path, path: str, keep: list[str]) -> _Sending | None:
    """Start sending, and return None if no pod of the run can receive yet."""
    try:
        member = member_of(client, run, 0)
    except Conflict:
        return None
    sending = _Sending(client, member, run.status.attempt, source, path, keep)
    sending.start()
    return sending


def _read(client: Client, run: Workload) -> Workload:
    current = read_training(client.get(trainings_path(run.spec.team, run.spec.name))).workload
    if current is None:
        raise ClusterError(f"The run {run.spec.name} cannot be read by this Fairlead.")
    return current


def receiving(spec: Training, path: str) -> Training:
    """Return the spec of the receiving run: the volumes and placement of the original run, and little else."""
    original = spec.kubernetes.pod
    pod = dict(original.get("spec") or {})
    pod.pop("initContainers", None)
    fields = ("name", "imagePullPolicy", "volumeMounts")
    pod["containers"] = [
        {field: container[field] for field in fields if field in container} for container in pod.get("containers") or ()
    ]
    return replace(
        spec,
        name=f"{spec.name[: NAME_MOST - len(SUFFIX)].rstrip('-')}{SUFFIX}",
        run=f"exec python3 {RUNTIME} await {shlex.quote(path)}",
        launch=Launch.EXEC,
        setup=None,
        workdir=None,
        env={},
        nodes=1,
        most_nodes=None,
        ranks_per_node=1,
        resources=Resources(cpu_milli=500, memory_bytes=256 * 1024**2),
        checkpoint=Checkpoint(),
        retry=Retry(program=0),
        max_duration_s=SEND_MOST_S,
        expected_duration_s=None,
        grace_s=1.0,
        kubernetes=overlay({**original, "spec": pod}),
    )


def _remove(system: Any, path: str, place: str) -> None:
    try:
        translated(lambda: system.rm_file(path), f"{place} keeps what is not needed")
    except (StoreUnavailable, FileNotFoundError):
        # A client without delete permission, or one that lost the race, leaves it; the next upload retries.
        return
