"""A pipeline as the run that carries it out, and back: its program is the driver, and its spec lies beside the runs."""

import hashlib
import os
import shlex
import sys
from pathlib import Path

from fairlead.cluster.local.home import Home
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.command import DRIVER, is_pipeline
from fairlead.errors import ClusterError
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Launch, Training


def store_of(home: Home) -> Path:
    """Return where artefacts of this machine's pipelines are kept."""
    return home.artefacts


def as_training(pipeline: Pipeline, home: Home) -> Training:
    """The run that carries a pipeline out on this machine; its spec is kept by the hash of its content.

    Raises:
        ClusterError: It cannot be kept.
    """
    text = to_json(pipeline)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    place = home.path / "pipelines" / f"{digest[:24]}.json"
    try:
        if not place.exists():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            temporary = place.with_name(f".{place.name}.{os.getpid()}")
            temporary.write_text(text)
            temporary.replace(place)
    except OSError as error:
        raise ClusterError(f"{place}: the pipeline cannot be kept: {error.strerror or error}") from error
    words = (sys.executable, "-m", DRIVER, str(place), str(store_of(home)))
    return Training(
        name=pipeline.name,
        run=shlex.join(words),
        team=pipeline.team,
        labels=pipeline.labels,
        workdir=pipeline.workdir,
        env=pipeline.env,
        resources=pipeline.resources,
        priority=pipeline.priority,
        grace_s=pipeline.grace_s,
        launch=Launch.EXEC,
    )


def pipeline_of(spec: Training) -> Pipeline | None:
    """The pipeline that a run carries out; None where it is none, or what was kept of it is gone."""
    if not is_pipeline(spec):
        return None
    place = Path(shlex.split(spec.run)[3])
    try:
        found = from_json(place.read_text())
    except FileNotFoundError:
        return None
    return found if isinstance(found, Pipeline) else None


def progress_of(pipeline: Pipeline, directory: Path) -> journal.Progress:
    """Return how far a run is.

    Args:
        directory: Where what is kept of the run lies.
    """
    return journal.read(directory / "files" / journal.NAME, pipeline)
