"""A user at a command line: in this process where nothing else is tested, as whole processes where that matters."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AfterStop, Intent, Phase, Status, Workload
from tests.home import end_everything


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        assert "Traceback" not in self.out + self.err, self.err
        assert "internal error" not in self.err, self.err


Call = Callable[..., Answer]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to work in, with a state directory of its own in ``home``; whatever was started is ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    yield tmp_path
    own = tmp_path / "home"
    for home in {own, Path(os.environ.get("FAIRLEAD_HOME", own))}:  # a test may have taken another, or none
        end_everything(home)


@pytest.fixture
def call(desk: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """One command in this process."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = main.call(list(arguments))
        said = capsys.readouterr()
        return Answer(code=code, out=said.out, err=said.err)

    return call


@pytest.fixture
def process(desk: Path) -> Call:
    """One command as a process; ``shell`` text in which {fairlead} stands for the command, ``env`` on top of ours."""

    def call(*arguments: str, shell: str | None = None, env: dict[str, str] | None = None) -> Answer:
        command = [sys.executable, "-m", "fairlead.cli.main", *arguments]
        argv = command if shell is None else ["bash", "-c", shell.format(fairlead=" ".join(command))]
        environ = {**os.environ, **(env or {})}
        ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
        return Answer(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    return call


@dataclass(frozen=True, kw_only=True)
class Past:
    """Runs that are kept without anything of them ever having run."""

    cluster: LocalCluster

    def submit(
        self,
        name: str,
        *,
        team: str = "default",
        phase: Phase | None = Phase.SUCCEEDED,
        labels: Mapping[str, str] | None = None,
    ) -> Workload:
        """A run in a phase; None leaves it as it is submitted, for a supervisor to find."""
        spec = Training(name=name, team=team, run="sleep 60", workdir="/", labels=labels or {})
        number = len(self.cluster.workloads())
        run = self.cluster.store.submit(f"{number:011x}", spec, 1_700_000_000.0 + number)
        if phase is None:
            return run
        reason = Reason(code=Code.PROGRAM_FAILED, message=f"made {phase.value} by a test")
        finished = 1_700_000_100.0 if phase.is_final else None
        then = Phase.FAILED if phase is Phase.STOPPING else None
        status = Status(
            phase=phase, reason=reason, since=1_700_000_000.0, finished_at=finished, after_stop=AfterStop(phase=then)
        )
        change = Change(
            workload_uid=run.uid,
            version=run.version,
            status=status,
            intent=Intent.STOP if phase.is_final else None,
            event=Event(type=phase.value, reason=reason),
        )
        assert self.cluster.store.apply(change, 1_700_000_100.0)
        return self.cluster.store.get(run.uid)


@pytest.fixture
def past(desk: Path) -> Iterator[Past]:
    cluster = LocalCluster.open(desk / "home")
    yield Past(cluster=cluster)
    cluster.close()
