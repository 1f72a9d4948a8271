"""Admission tells whether the trials of a sweep may pause."""

from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import admit
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sweep

SAVES = "continues at a rung; the others pause, as trials keep checkpoints"
STOPS = (
    "continues at a rung; others without a checkpoint stop for good; with `checkpoint: {every: ...}` in the trial they "
    "pause"
)


@pytest.mark.parametrize(
    ("prune", "checkpoint", "says"),
    [
        ("asha", "{every: 4 steps}", f"prune: 1 of 5 trials {SAVES}"),
        ("asha", "{keep: 2}", f"prune: 1 of 3 trials {STOPS}"),
        ("{factor: 5}", "{every: 4 steps}", f"prune: 1 of 5 trials {SAVES}"),
        ("median", "{every: 4 steps}", None),
    ],
)
def test_a_sweep_says_whether_its_trials_pause(tmp_path: Path, prune: str, checkpoint: str, says: str | None) -> None:
    (spec,) = parse(
        "kind: Sweep\nname: rates\nparameters: {lr: 0.0..1.0}\nobjective: loss\ntrials: 4\n"
        f"prune: {prune}\ntrial: {{run: 'true', checkpoint: {checkpoint}}}\n"
    )
    assert isinstance(spec, Sweep)
    cluster = LocalCluster.open(tmp_path / "home")
    notes = [note for note in admit(cluster, spec, tmp_path).notes if note.startswith("prune: ")]
    assert notes == ([] if says is None else [says])
    cluster.close()
