"""The driver as the program of a pod: the pipeline comes in a variable, and all that is kept lies where checkpoints go.

There are the journal, below the run's own name, and what steps returned, for all runs that have that place in common.
Each line of the journal and each output is on the disk before anything follows from it, as a pod may go with its node.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.control.pipelines.artefacts import SharedArtefacts
from fairlead.control.pipelines.driver import Driver, Surroundings
from fairlead.control.pipelines.packing import unpacked
from fairlead.control.pipelines.result_files import ResultFiles
from fairlead.runtime.progress import Reporter
from fairlead.specs.pipeline import VARIABLE

FOLDER = "fairlead-artefacts"


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the pipeline of this pod."""
    place = environ.get("FAIRLEAD_CHECKPOINT_TO")
    if place is None:
        print("fairlead: a pipeline needs a place that outlives its pods: give `checkpoint.to`.", file=sys.stderr)
        return 2
    pipeline = unpacked(environ[VARIABLE])
    pipeline = replace(pipeline, team=environ.get("FAIRLEAD_TEAM", pipeline.team))
    files = Path(place.removeprefix("file://"))
    store = files.parent / FOLDER
    files.mkdir(parents=True, exist_ok=True)
    around = Surroundings(
        workdir=Path.cwd(),
        files=files,
        checkpoints=str(files / "checkpoints"),
        run=environ.get("FAIRLEAD_RUN_UID", ""),
        environ=dict(environ),
        is_in_pod=True,
    )
    directory = environ.get("FAIRLEAD_POD_DIR")
    reporter = Reporter(rank=0, world_size=1, directory=None if directory is None else Path(directory))
    return Driver(pipeline, SharedArtefacts(store), ResultFiles(store), around, reporter).run()
