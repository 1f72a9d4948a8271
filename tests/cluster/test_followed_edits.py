"""`fairlead run --follow-edits`: a saved edit restarts the run on this machine with the new code."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.state.snapshot import Phase
from tests.home import end_everything
from tests.waiting import until

PROGRAM = """\
import time
import fairlead

with fairlead.run() as run:
    start = run.resume(load=lambda directory: None)
    print("version {version} from", start, flush=True)
    for step in range(start + 1, start + 4):
        run.progress(step, loss=1.0)
        run.checkpoint(step, save=lambda directory: (directory / "w").write_text("w"), force=True)
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    end_everything(tmp_path / "state")


@pytest.mark.slow
def test_a_saved_edit_restarts_a_run_from_its_checkpoint_and_a_failed_one_again(tmp_path: Path, home: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    program = work / "train.py"
    program.write_text(PROGRAM.format(version=1))
    output = tmp_path / "output"
    command = [sys.executable, "-m", "fairlead.cli.main", "run", "--follow-edits", "--", "python", "train.py"]
    env = os.environ | {"FAIRLEAD_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=work, env=env, stdout=file, stderr=subprocess.STDOUT)

    def shows(text: str) -> bool:
        return text in output.read_text()

    try:
        until(lambda: shows("version 1 from 0"), output.read_text)
        cluster = LocalCluster.open(home)
        until(lambda: (run := cluster.find("train")).progress is not None and run.progress.checkpoint_step == 3)
        saved_at = time.monotonic()
        program.write_text(PROGRAM.format(version=2))
        until(lambda: shows("version 2 from 3"), output.read_text)
        print(f"first line of the new code after {time.monotonic() - saved_at:.2f} s")
        assert cluster.find("train").status.attempt == 1

        program.write_text("raise SystemExit(1)\n")
        until(lambda: shows("train starts again with the next edit"), output.read_text)
        program.write_text(PROGRAM.format(version=3))
        until(lambda: shows("version 3 from"), output.read_text)
        assert output.read_text().count("version 2 from 3") == 1
        edits = [event for event in cluster.events(cluster.find("train").uid) if event.type == "CodeEdited"]
        assert len(edits) == 2
        assert edits[0].reason.message.startswith("train.py was edited; attempt 1 runs the code as of now (")
        until(lambda: cluster.find("train").status.phase is Phase.RUNNING)
        cluster.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert process.returncode == 130
