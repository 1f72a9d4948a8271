"""Runs the driver as the program of a pod: the pipeline comes in a variable, and all state is in the checkpoint place.

It has the journal, below the run's own name, and the outputs of steps, for all runs that share the place. Each line of
the journal and each output is durable before the driver acts on it, since a pod may be lost with its node.

See decision 44.
"""

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairlead.control.pipelines import journal
from fairlead.control.pipelines.artefacts import SharedArtefacts
from fairlead.control.pipelines.drift_watch import DriftWatch
from fairlead.control.pipelines.driver import PipelineDriver, Surroundings
from fairlead.control.pipelines.object_place import ObjectArtefacts, ObjectDocuments, ObjectJournal, StoreExchange
from fairlead.control.pipelines.pod_children import PodChildren
from fairlead.control.pipelines.result_files import FileDocuments, ResultFiles
from fairlead.control.pipelines.watched import watch
from fairlead.errors import InvalidSpec, RuntimeFault
from fairlead.runtime.places import is_url
from fairlead.runtime.progress import Reporter
from fairlead.specs.formats.packing import unpacked
from fairlead.specs.pipeline import FAMILY_FILE, WATCH_VARIABLE, Drift, Pipeline
from fairlead.specs.workload import PIPELINE_VARIABLE

FOLDER = "fairlead-artefacts"
LOCK = "driver.lock"
LOOK_S = 0.5


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the pipeline of this pod."""
    directory = environ.get("FAIRLEAD_POD_DIR")
    reporter = Reporter(rank=0, world_size=1, directory=None if directory is None else Path(directory))
    if WATCH_VARIABLE in environ:
        request = json.loads(environ[WATCH_VARIABLE])
        look = None
        if "drift" in request:
            look = DriftWatch(Drift(**request["drift"]), Path.cwd(), Path(FAMILY_FILE), reporter).look
        watch(tuple(request["data"]), request["every_s"], reporter, and_look=look)
    place = environ.get("FAIRLEAD_CHECKPOINT_TO")
    if place is None:
        print("fairlead: a pipeline needs a place that outlives its pods: give `checkpoint.to`.", file=sys.stderr)
        return 2
    if Path.cwd() == Path("/"):
        print(
            "fairlead: this image's programs start in /, and all files there would be the code of the steps: give "
            "`workdir`, such as `.` for the files beside the pipeline's own, or the image's directory that has them.",
            file=sys.stderr,
        )
        return 2
    try:
        pipeline = unpacked(environ[PIPELINE_VARIABLE])
        pipeline = replace(pipeline, team=environ.get("FAIRLEAD_TEAM", pipeline.team))
        children = PodChildren(Path(FAMILY_FILE), reporter) if pipeline.has_children else None
        return (_in_store if is_url(place) else _on_volume)(pipeline, place, environ, reporter, children)
    except (InvalidSpec, RuntimeFault) as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return 1


def _on_volume(
    pipeline: Pipeline, place: str, environ: Mapping[str, str], reporter: Reporter, children: PodChildren | None
) -> int:
    """Run a pipeline whose place is a directory, where its steps read and write too."""
    files = Path(place.removeprefix("file://"))
    store = files.parent / FOLDER
    around = _surroundings(files, str(files / "checkpoints"), environ, children)
    with _alone(files / LOCK):
        return PipelineDriver(
            pipeline, SharedArtefacts(store), ResultFiles(FileDocuments(store)), around, reporter
        ).run()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other driver of the run is alive, such as one on a node that only the volume can still reach.

    On a file system without locks, print a warning and continue.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_told:
                    print("fairlead: waits for another pod of this run, which still holds its journal", flush=True)
                is_told = True
                time.sleep(LOOK_S)
            except OSError as error:
                print(f"fairlead: this volume has no locks ({error.strerror}); continues without", flush=True)
                break
        yield
    finally:
        os.close(lock)


def _in_store(
    pipeline: Pipeline, place: str, environ: Mapping[str, str], reporter: Reporter, children: PodChildren | None
) -> int:
    """Run a pipeline whose place is an object store; its steps read and write on the pod's disk."""
    files = Path(environ["FAIRLEAD_RUN_DIR"])
    around = _surroundings(files, f"{place}/checkpoints", environ, children)
    shared = ObjectDocuments(f"{place.rpartition('/')[0]}/{FOLDER}")
    lines = ObjectJournal(ObjectDocuments(place))
    lines.restore(files / journal.NAME)
    exchange = StoreExchange(ObjectDocuments(place), shared.place)
    around = replace(around, send=lines.send, exchange=exchange)
    artefacts = ObjectArtefacts(files / FOLDER, shared)
    return PipelineDriver(pipeline, artefacts, ResultFiles(shared), around, reporter).run()


def _surroundings(
    files: Path, checkpoints: str, environ: Mapping[str, str], children: PodChildren | None
) -> Surroundings:
    files.mkdir(parents=True, exist_ok=True)
    return Surroundings(
        workdir=Path.cwd(),
        files=files,
        checkpoints=checkpoints,
        run=environ.get("FAIRLEAD_RUN_UID", ""),
        environ=dict(environ),
        children=children,
        is_in_pod=True,
    )
