"""Runs the driver as the program of a pod: the pipeline comes in a variable, and all state is in the checkpoint place.

The place has the journal, below the run's own name, and the outputs of steps, for all runs that share it. Each line of
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
RETRY_S = 0.5


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
    checkpoint_to = environ.get("FAIRLEAD_CHECKPOINT_TO")
    if checkpoint_to is None:
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
        return (_in_store if is_url(checkpoint_to) else _on_volume)(
            pipeline, checkpoint_to, environ, reporter, children
        )
    except (InvalidSpec, RuntimeFault) as error:
        print(f"fairlead: {error}", file=sys.stderr)
        return 1


def _on_volume(
    pipeline: Pipeline, checkpoint_to: str, environ: Mapping[str, str], reporter: Reporter, children: PodChildren | None
) -> int:
    """Run a pipeline whose place is a directory, where its steps read and write too."""
    directory = Path(checkpoint_to.removeprefix("file://"))
    artefact_directory = directory.parent / FOLDER
    environment = _environment(directory, str(directory / "checkpoints"), environ, children)
    with _exclusive(directory / LOCK):
        return PipelineDriver(
            pipeline,
            SharedArtefacts(artefact_directory),
            ResultFiles(FileDocuments(artefact_directory)),
            environment,
            reporter,
        ).run()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Wait until no other driver of the run is alive, such as one on a node that only the volume can still reach.

    On a file system without locks, print a warning and continue.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        has_reported = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not has_reported:
                    print("fairlead: waits for another pod of this run, which still holds its journal", flush=True)
                has_reported = True
                time.sleep(RETRY_S)
            except OSError as error:
                print(f"fairlead: this volume has no locks ({error.strerror}); continues without", flush=True)
                break
        yield
    finally:
        os.close(lock)


def _in_store(
    pipeline: Pipeline, checkpoint_to: str, environ: Mapping[str, str], reporter: Reporter, children: PodChildren | None
) -> int:
    """Run a pipeline whose place is an object store; its steps read and write on the pod's disk."""
    directory = Path(environ["FAIRLEAD_RUN_DIR"])
    environment = _environment(directory, f"{checkpoint_to}/checkpoints", environ, children)
    shared_documents = ObjectDocuments(f"{checkpoint_to.rpartition('/')[0]}/{FOLDER}")
    journal_copy = ObjectJournal(ObjectDocuments(checkpoint_to))
    journal_copy.restore(directory / journal.NAME)
    exchange = StoreExchange(ObjectDocuments(checkpoint_to), shared_documents.place)
    environment = replace(environment, send=journal_copy.send, exchange=exchange)
    artefacts = ObjectArtefacts(directory / FOLDER, shared_documents)
    return PipelineDriver(pipeline, artefacts, ResultFiles(shared_documents), environment, reporter).run()


def _environment(
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
