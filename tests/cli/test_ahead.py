"""When a command starts the supervisor before it has read what it is to submit."""

import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli.ahead import start_ahead, will_submit_here
from fairlead.cluster.local import supervision
from fairlead.cluster.local.home import Home


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("run: 'true'")


@pytest.mark.parametrize("line", ["run train.yaml", "run -d train.yaml --set nodes=2", "run -- python train.py -n 3"])
def test_a_run_on_this_machine_starts_it_ahead(line: str) -> None:
    assert will_submit_here(line.split(), {})


@pytest.mark.parametrize(
    "line",
    [
        "status", "", "run", "run --help", "run gone.yaml", "plan train.yaml", "run --context prod train.yaml",
        "run train.yaml --cluster=kubernetes", "run train.yaml -n team", "run -nteam train.yaml",
        "run --namespace=a -- python train.py",
    ],
)  # fmt: skip
def test_nothing_else_does(line: str) -> None:
    assert not will_submit_here(line.split(), {})


def test_variables_that_name_another_cluster_keep_it_from_that() -> None:
    for name in ("FAIRLEAD_CLUSTER", "FAIRLEAD_CONTEXT", "FAIRLEAD_NAMESPACE"):
        assert not will_submit_here(["run", "train.yaml"], {name: "x"})


def test_none_is_started_where_a_wrong_spec_would_leave_a_state_directory_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(supervision, "start_supervisor", lambda home, *, is_ahead: started.append(home.path))
    environ = {"FAIRLEAD_HOME": str(tmp_path / "home")}
    monkeypatch.setenv("FAIRLEAD_HOME", environ["FAIRLEAD_HOME"])
    start_ahead(["run", "train.yaml"], environ)
    assert not (tmp_path / "home").exists()
    Home.open()
    start_ahead(["run", "train.yaml"], environ)
    assert started == [tmp_path / "home"]


def test_the_entry_point_starts_it_before_the_command_line_is_loaded() -> None:
    program = (
        "import sys\nimport fairlead.cli.start as start\n"
        "start.start_ahead = lambda *_: print([name for name in ('click', 'fairlead.specs') if name in sys.modules])\n"
        "sys.argv = ['fairlead', '--version']\nstart.main()\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.startswith("[]\nfairlead, version")
