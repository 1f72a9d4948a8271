"""Real ranks for tests: processes with the environment that Fairlead gives them, forked from one that knows torch."""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.runtime import run_key
from tests.late import Late
from tests.ports import free_port

torch: Any = Late("torch")

PATIENCE_S = 120.0


def contract(
    *, rank: int, world_size: int, pod_dir: Path, to: str | Path | None, attempt: int, port: int, agree_port: int
) -> dict[str, str]:
    """The variables of one rank."""
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "FAIRLEAD_RUN": "test",
        "FAIRLEAD_RUN_UID": "uid",
        "FAIRLEAD_ATTEMPT": str(attempt),
        "FAIRLEAD_POD_DIR": str(pod_dir),
        "FAIRLEAD_AGREE_PORT": str(agree_port),
        "FAIRLEAD_GRACE_S": "5",
        run_key.FILE: str(pod_dir / "key"),
    }
    return environ if to is None else {**environ, "FAIRLEAD_CHECKPOINT_TO": str(to)}


def keyed(path: Path) -> dict[str, str]:
    """The environment of a helper beside the ranks of the first attempt, with the key in that file."""
    run_key.create(path)
    return {**os.environ, run_key.FILE: str(path), "FAIRLEAD_RUN_UID": "uid", "FAIRLEAD_ATTEMPT": "0"}


class Gang:
    """One attempt of a run; use it as a context, which ends what is left."""

    def __init__(
        self,
        program: Callable[..., None],
        *args: object,
        pod_dir: Path,
        to: str | Path | None,
        world_size: int = 2,
        attempt: int = 0,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        are_nodes: bool = False,
    ) -> None:
        """Take what the ranks do; with ``are_nodes`` each of them is on a node of its own."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", "tests.runtime.programs", *preload])
        pod_dir.mkdir(parents=True, exist_ok=True)
        run_key.create(pod_dir / "key")
        self.pod_dir = pod_dir
        ports = {"port": free_port(), "agree_port": free_port()}
        self._context = context
        self._targets: list[tuple[Any, ...]] = []
        self.processes = []
        for rank in range(world_size):
            variables = contract(
                rank=rank, world_size=world_size, pod_dir=pod_dir, to=to, attempt=attempt, **ports
            ) | dict(env or {})
            if are_nodes:
                variables |= {"LOCAL_RANK": "0", "GROUP_RANK": str(rank)}
            log = pod_dir / f"rank-{rank}.log"
            self._targets.append((program, args, variables, pod_dir, log))
            self.processes.append(context.Process(target=enter, args=self._targets[-1]))

    def __enter__(self) -> "Gang":
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(PATIENCE_S)

    def revive(self, rank: int) -> None:
        """Start a rank again that has ended, as its shim does."""
        self.processes[rank].join(PATIENCE_S)
        self.processes[rank] = self._context.Process(target=enter, args=self._targets[rank])
        self.processes[rank].start()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, timeout_s: float = PATIENCE_S) -> list[int | None]:
        """Exit codes of all ranks, negative for a signal."""
        deadline = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        codes = [process.exitcode for process in self.processes]
        assert None not in codes, f"a rank did not end: {codes}\n{self.logs()}"
        return codes

    def finish(self) -> None:
        """Wait until all ranks have ended well."""
        codes = self.wait()
        assert set(codes) == {0}, f"{codes}\n{self.logs()}"

    def until(self, met: Callable[[], object], what: str, *, without: int | None = None) -> None:
        """Wait for something to become true while the ranks run, but for one that was killed."""
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < deadline, f"{what} did not come\n{self.logs()}"
            alive = (process.is_alive() for rank, process in enumerate(self.processes) if rank != without)
            assert all(alive), f"a rank ended\n{self.logs()}"
            time.sleep(0.01)

    def report(self, rank: int = 0) -> dict[str, Any]:
        """The rank's progress file; empty when there is none yet."""
        return read_report(self.pod_dir, rank)

    def events(self, rank: int = 0) -> list[tuple[str, str]]:
        """Type and message of the rank's events."""
        return read_events(self.pod_dir, rank)

    def logs(self) -> str:
        """What all ranks wrote to stdout and stderr."""
        return "".join(path.read_text() for path in sorted(self.pod_dir.glob("rank-*.log")))


def enter(
    program: Callable[..., None], args: Sequence[object], env: Mapping[str, str], directory: Path, log: Path
) -> None:
    """Become a rank, in a directory of the test's own: a rank that goes wrong must find nothing to harm."""
    os.environ.update(env)
    torch.set_num_threads(int(env["OMP_NUM_THREADS"]))  # it was imported before the variable was there
    os.chdir(directory)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    program(*args)


def read_report(pod_dir: Path, rank: int = 0) -> dict[str, Any]:
    """A rank's progress file; empty when there is none."""
    path = pod_dir / f"rank-{rank}.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return report


def read_events(pod_dir: Path, rank: int = 0) -> list[tuple[str, str]]:
    """Type and message of a rank's events."""
    path = pod_dir / f"rank-{rank}.events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(event["type"], event["message"]) for event in map(json.loads, lines)]
