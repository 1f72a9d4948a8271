"""The runtime out of its zip file, by interpreters that have nothing but themselves: real shims, ranks and records."""

import base64
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fairlead.cluster.kubernetes.manifests.runtime_bundle import MOST_BYTES, bundle, bundle_name, render_bundle
from fairlead.cluster.kubernetes.workloads.pod_reports import read_ending, read_report
from fairlead.runtime import run_key
from fairlead.runtime.errors import StoreUnavailable
from tests.ports import free_port
from tests.processes import Child

TIMEOUT_S = 60.0


def bare_interpreters() -> list[str]:
    """This one, and the oldest that is supported where there is one."""
    found = [sys.executable]
    old = shutil.which("python3.9")
    if (
        old is not None
        and subprocess.run([old, "--version"], capture_output=True, check=False, timeout=60).returncode == 0
    ):
        found.append(old)
    return found


class Container:
    """A container with nothing in it but a Python and what Fairlead mounts."""

    def __init__(self, path: Path, python: str) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.python = python
        self.runtime = path / "runtime.pyz"
        self.runtime.write_bytes(bundle())
        self.pod_dir = path / "local" / "pod"
        self.termination_log = path / "termination-log"
        self.prefix: list[str] = []
        (path / "image").mkdir()

    def program(self, *lines: str) -> None:
        (self.path / "image" / "program.py").write_text("\n".join(lines))

    def start(
        self, command: str, *, ranks: int = 1, setup: str | None = None, of_secrets: dict[str, str] | None = None,
        **told: Any,
    ) -> subprocess.Popen[str]:  # fmt: skip
        instructions = {
            "uid": f"uid-{os.getpid()}-{self.path.name}", "workdir": None, "parts": None, "ranks": list(range(ranks)),
            "threads": 1, "launch": "auto", "grace_s": 5.0, "log_max_bytes": 1 << 20, "log_files": 1,
            "env": {
                "FAIRLEAD_POD_DIR": str(self.pod_dir),
                "FAIRLEAD_RUN_DIR": str(self.path / "local" / "run"),
                "WORLD_SIZE": str(ranks),
            },
            **told,
        }  # fmt: skip
        env = {
            "PATH": f"{Path(self.python).parent}:/usr/bin:/bin",
            "HOME": str(self.path / "local" / "home"),
            "FAIRLEAD_TERMINATION_LOG": str(self.termination_log),
            "FAIRLEAD_INSTRUCTIONS": json.dumps(instructions),
            "FAIRLEAD_COMMAND": command,
            **({} if setup is None else {"FAIRLEAD_SETUP": setup}),
            **(of_secrets or {}),
        }
        argv = [*self.prefix, self.python, "-I", "-S", str(self.runtime), "run"]
        return subprocess.Popen(argv, env=env, cwd=self.path / "image", stdout=subprocess.PIPE, text=True)

    def enter(self, rank: int, *command: str) -> subprocess.CompletedProcess[str]:
        argv = [self.python, "-I", "-S", str(self.runtime), "enter", str(self.pod_dir), str(rank), *command]
        return subprocess.run(argv, env={}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def run(self, command: str, **told: Any) -> tuple[int, str]:
        process = self.start(command, **told)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out

    def pod(self, code: int) -> dict[str, Any]:
        """The pod as the API server would have it now."""
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": "2026-01-01T00:00:00Z"}
        ended["message"] = self.termination_log.read_text()
        return {"status": {"containerStatuses": [{"name": "ranks", "state": {"terminated": ended}}]}}


@pytest.fixture(params=bare_interpreters(), ids=lambda path: Path(path).name)
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Container:
    return Container(tmp_path, request.param)


def test_ranks_start_and_end_and_the_record_of_their_end_is_read(container: Container) -> None:
    code, out = container.run('python3 -c \'import os; print(os.environ["RANK"], os.environ["WORLD_SIZE"])\'', ranks=2)
    assert code == 0
    assert sorted(out.splitlines()) == ["0| 0 2", "1| 1 2"]
    ending = read_ending(container.pod(0), ranks=range(2))
    assert ending is not None
    assert [(each.rank, each.exit_code) for each in ending.exits] == [(0, 0), (1, 0)]


def test_a_lone_rank_finds_nothing_of_torchruns(container: Container) -> None:
    places = {"FAIRLEAD_POD_DIR": str(container.pod_dir), "FAIRLEAD_RUN_DIR": str(container.path / "local" / "run")}
    names = "[name for name in os.environ if 'RANK' in name or 'WORLD' in name or 'MASTER' in name]"
    code, out = container.run(f'python3 -c "import os; print({names})"', env=places)
    assert (code, out) == (0, "0| []\n")


def test_a_program_gets_the_arguments_by_which_ranks_of_boosted_trees_meet(container: Container) -> None:
    container.program(
        "from fairlead.lightgbm import network_params",
        "from fairlead.xgboost import communicator_args",
        "print(communicator_args()['dmlc_tracker_port'], network_params()['local_listen_port'])",
    )
    meeting = {
        "DMLC_TRACKER_URI": "127.0.0.1", "DMLC_TRACKER_PORT": "20002", "DMLC_TASK_ID": "000000",
        "LIGHTGBM_MACHINES": "127.0.0.1:20003", "LIGHTGBM_NUM_MACHINES": "1", "LIGHTGBM_LOCAL_LISTEN_PORT": "20003",
    }  # fmt: skip
    exported = " ".join(f"{name}={value}" for name, value in meeting.items())
    assert container.run(f"{exported} python3 program.py") == (0, "0| 20002 20003\n")


def test_the_rank_that_failed_first_gives_the_exit_code_and_its_last_words(container: Container) -> None:
    container.program(
        "import os, sys, time",
        "if os.environ['RANK'] == '0': time.sleep(60)",
        "sys.exit('bad luck')",
    )
    code, out = container.run("python3 program.py", ranks=2)
    assert code == 1
    assert "1! bad luck" in out
    ending = read_ending(container.pod(1), ranks=range(2))
    assert ending is not None
    by_rank = {each.rank: each for each in ending.exits}
    assert by_rank[1].tail == ("bad luck",)
    assert by_rank[0].signal == signal.SIGTERM


def test_a_stop_notice_reaches_the_ranks_and_they_have_their_grace(container: Container) -> None:
    container.program(
        "import signal, sys, time",
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143)))",
        "print('up', flush=True)",
        "time.sleep(60)",
    )
    process = container.start("python3 program.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "0| up\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert out == "0| saved\n"
    assert process.returncode == 143


def test_a_command_that_enters_the_pod_has_what_the_rank_was_given(container: Container) -> None:
    process = container.start("echo up; sleep 60", ranks=2)
    assert process.stdout is not None
    assert process.stdout.readline().endswith("| up\n")
    code = (
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], 'FAIRLEAD_POD_DIR' in os.environ, os.getcwd())"
    )
    said = container.enter(1, container.python, "-c", code)
    assert (said.returncode, said.stdout) == (0, f"1 2 False {container.path / 'image'}\n")
    lost = container.enter(1, "no-such-program")
    assert (lost.returncode, lost.stderr) == (127, "fairlead: no-such-program: command not found on PATH\n")
    none = container.enter(2, "true")
    assert (none.returncode, none.stderr) == (125, "rank 2 does not run here now\n")
    process.terminate()
    process.communicate(timeout=TIMEOUT_S)


def test_variables_of_a_secret_reach_ranks_and_are_in_no_file_of_the_pod(container: Container) -> None:
    own = {"API_KEY": "m4rk3d-value"}
    command = "test ${#API_KEY} = 12; echo $?; ls $FAIRLEAD_POD_DIR"
    code, out = container.run(command, of_secrets=own, setup='test -n "$API_KEY"')
    assert code == 0
    assert out.startswith("0| 0\n")
    assert "0| pod.json\n" in out
    files = [path for path in container.path.rglob("*") if path.is_file()]
    assert [path for path in files if b"m4rk3d" in path.read_bytes()] == []


def test_a_failed_setup_is_told_and_no_rank_is_started(container: Container) -> None:
    code, out = container.run("echo never", setup="echo no disk >&2; exit 3")
    assert code == 1
    assert out == "-! no disk\n"
    ending = read_ending(container.pod(1), ranks=range(1))
    assert ending is not None
    assert ending.setup_failed
    assert ending.message == "the `setup` step failed with exit code 3: no disk"


def test_a_place_that_takes_no_checkpoints_ends_the_pod_before_its_program_starts(container: Container) -> None:
    (container.path / "file").write_text("")
    place = f"{container.path / 'file'}/checkpoints/net-1"
    env = {
        "FAIRLEAD_POD_DIR": str(container.pod_dir), "FAIRLEAD_RUN_DIR": str(container.path / "local" / "run"),
        "WORLD_SIZE": "1", "FAIRLEAD_ATTEMPT": "0", "FAIRLEAD_CHECKPOINT_TO": place,
    }  # fmt: skip
    code, out = container.run("echo never", env=env)
    assert (code, out) == (1, "")
    ending = read_ending(container.pod(1), ranks=range(1))
    assert ending is not None
    assert ending.setup_failed
    assert ending.message == f"checkpoints cannot be kept in {place}: {container.path / 'file'}: Not a directory"


def test_a_store_without_its_package_or_credentials_is_told_before_the_program_starts(container: Container) -> None:
    container.program("print('never')")
    env = {
        "FAIRLEAD_POD_DIR": str(container.pod_dir), "FAIRLEAD_RUN_DIR": str(container.path / "local" / "run"),
        "WORLD_SIZE": "1", "FAIRLEAD_ATTEMPT": "0", "FAIRLEAD_CHECKPOINT_TO": "s3://models/net-1",
    }  # fmt: skip
    code, out = container.run(f"{container.python} program.py", env=env)
    assert (code, out) == (1, "")
    ending = read_ending(container.pod(1), ranks=range(1))
    assert ending is not None
    assert ending.message is not None
    assert ending.message.startswith("checkpoints cannot be kept there: ")
    # The first where the image has no fsspec, the other where it has all but credentials.
    assert "s3:// need fsspec; pip install" in ending.message or "s3://models/net-1: " in ending.message


def test_the_working_directory_is_unpacked_and_the_command_runs_in_it(container: Container) -> None:
    parts = container.path / "parts"
    parts.mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("pkg/hello.py")
        info.size = len(b"print('hello')")
        archive.addfile(info, io.BytesIO(b"print('hello')"))
    content = buffer.getvalue()
    (parts / "000").write_bytes(content[:40])
    (parts / "001").write_bytes(content[40:])
    code, out = container.run(
        "python3 -m pkg.hello", parts=str(parts), workdir=str(container.path / "local" / "work")
    )  # fmt: skip
    assert (code, out) == (0, "0| hello\n")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_an_archive_that_leaves_its_directory_is_refused(name: str, tmp_path: Path) -> None:
    from fairlead.runtime.archives import unpack

    parts = tmp_path / "parts"
    parts.mkdir()
    with tarfile.open(parts / "000", mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(StoreUnavailable, match=r"cannot be unpacked: .*(leads out of its directory|absolute path)"):
        unpack(str(parts), str(tmp_path / "work"))


def test_an_archive_that_differs_from_what_was_sent_is_not_unpacked(tmp_path: Path) -> None:
    from fairlead.runtime.archives import unpack

    parts = tmp_path / "parts"
    parts.mkdir()
    with tarfile.open(parts / "000", mode="w") as archive:
        archive.addfile(tarfile.TarInfo("train.py"), io.BytesIO())
    digest = hashlib.sha256((parts / "000").read_bytes()).hexdigest()
    with pytest.raises(StoreUnavailable, match="differs from what was sent"):
        unpack(str(parts), str(tmp_path / "work"), "0" * 32)
    assert not (tmp_path / "work").exists()
    for length in (16, 32):
        unpack(str(parts), str(tmp_path / f"work-{length}"), digest[:length])
        assert os.listdir(tmp_path / f"work-{length}") == ["train.py"]


def test_the_program_imports_fairlead_without_having_it_installed(tmp_path: Path) -> None:
    container = Container(tmp_path, sys.executable)
    program = "import fairlead; print(fairlead.__file__); fairlead.run"
    code, out = container.run(f'{sys.executable} -c "{program}"')
    assert code == 0
    assert out.startswith(f"0| {container.runtime}/fairlead/__init__.py")


def test_a_program_whose_python_is_too_old_for_its_checkpoints_is_told_so(container: Container) -> None:
    container.program("import fairlead", "with fairlead.run() as run: print(run.rank)")
    code, out = container.run("python3 program.py")
    if container.python == sys.executable:
        assert (code, out) == (0, "0| 0\n")
    else:
        assert code == 1
        assert "0! ImportError: fairlead.run needs Python 3.11 or newer, and this is 3.9." in out


def test_the_reporter_tells_progress_events_and_signs_of_life(container: Container) -> None:
    pod_dir = container.pod_dir
    pod_dir.mkdir(parents=True)
    (pod_dir / "started.json").write_text(json.dumps({"at": 100.0}))
    (pod_dir / "rank-0.json").write_text(json.dumps({"step": 7, "loss": 0.5, "updated_at": 107.0, "metrics": {}}))
    (pod_dir / "rank-1.json").write_text(json.dumps({"step": 6, "updated_at": 108.0}))
    event = {"at": 103.0, "type": "CheckpointSaved", "message": "step 5"}
    (pod_dir / "rank-0.events.jsonl").write_text(json.dumps(event) + "\nnot ours\n")
    argv = [container.python, "-I", "-S", str(container.runtime), "report", str(pod_dir)]
    process = Child(argv, stdout=subprocess.PIPE, text=True, env={})
    assert process.stdout is not None
    report = read_report(process.stdout.readline())
    (pod_dir / "rank-0.json").write_text(json.dumps({"step": 9, "updated_at": 109.0}))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    last = read_report(out)
    assert last is not None
    assert last.progress is not None
    assert last.progress.step == 9
    assert report is not None
    assert report.started_at == 100.0
    assert report.active_at == 108.0
    assert report.progress is not None
    assert (report.progress.step, report.progress.loss) == (7, 0.5)
    assert [(each.rank, each.place, each.event.type) for each in report.events] == [(0, 0, "CheckpointSaved")]


def test_the_reporter_of_ranks_that_have_ended_ends_also_when_it_missed_the_notice(container: Container) -> None:
    code, _ = container.run("echo done")
    assert code == 0
    argv = [container.python, "-I", "-S", str(container.runtime), "report", str(container.pod_dir)]
    ended = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0
    assert read_report(ended.stdout) is not None


def test_files_that_do_not_come_end_the_pod_with_a_sentence(container: Container) -> None:
    place = str(container.path / "0123456789abcdef.tar.gz")
    code, _ = container.run("echo never", archive=place)
    assert code == 1
    ending = read_ending(container.pod(1), ranks=range(1))
    assert ending is not None
    assert ending.message == (f"the working directory did not arrive: {place} no longer exists; submit the run again")
    assert (container.pod_dir / "exit.json").exists()


def test_the_bundle_fits_into_a_configmap_and_is_the_same_each_time() -> None:
    manifest = render_bundle("research")
    assert len(json.dumps(manifest)) < MOST_BYTES * 11 // 20
    assert base64.b64decode(manifest["binaryData"]["runtime.pyz"]) == bundle()
    before = bundle()
    bundle.cache_clear()
    time.sleep(0.01)
    assert bundle() == before
    assert manifest["metadata"]["name"] == bundle_name()


@pytest.mark.parametrize("framework", ["lightning", "huggingface"])
def test_a_program_in_a_pod_finds_the_callbacks(container: Container, framework: str) -> None:
    # A stand-in: only what is asked of a framework when its callback is imported.
    for name, content in {
        "lightning/__init__.py": "",
        "lightning/pytorch.py": "class Callback: pass\nclass Trainer: pass\nclass LightningModule: pass\n",
        "transformers.py": "\n".join(
            f"class {each}: pass"
            for each in ("Trainer", "TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments")
        ),
    }.items():
        path = container.path / "image" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    container.program(f"from fairlead.{framework} import FairleadCallback", "print(FairleadCallback.__module__)")
    code, out = container.run("python3 program.py")
    assert (code, out) == (0, f"0| fairlead.runtime.frameworks.{framework}\n")


class RangeServer(BaseHTTPRequestHandler):
    """Files of 200,000 bytes that are named by their number; it counts what is read of them."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._begin(200, 200_000)

    def do_GET(self) -> None:
        self.requests.append(self.path)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        size = int(last) + 1 - int(first)
        self._begin(206, size)
        self.wfile.write(bytes([int(self.path[1:3])]) * size)

    def _begin(self, status: int, size: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"one"')
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class Listening(ThreadingHTTPServer):
    request_queue_size = 256


def test_pods_read_data_from_each_others_caches(tmp_path: Path) -> None:
    RangeServer.requests.clear()
    store = Listening(("127.0.0.1", 0), RangeServer)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{store.server_address[1]}/{{00..39}}.bin"
    port, processes = free_port(), []
    try:
        for node in range(2):
            pod = Container(tmp_path / str(node), sys.executable)
            (pod.path / "local").mkdir()
            pod.program(
                "import fairlead, os, time",
                "with fairlead.run() as run:",
                "    samples = [sample for batch in run.data('train').batches(4) for sample in batch]",
                "    assert all(sample['bin'] == bytes([int(sample['__key__'])]) * 200_000 for sample in samples)",
                "    print(len(samples), flush=True)",
                f"open({str(tmp_path / f'{node}.done')!r}, 'w').close()",
                "while not all(os.path.exists(path) for path in",  # a pod that ends takes its cache with it
                f"              {[str(tmp_path / f'{other}.done') for other in range(2)]!r}):",
                "    time.sleep(0.05)",
            )
            env = {
                "FAIRLEAD_POD_DIR": str(pod.pod_dir), "FAIRLEAD_RUN_DIR": str(pod.path / "local" / "run"),
                "FAIRLEAD_DATA": json.dumps({"train": {"from": url, "mode": "cache"}}),
                "FAIRLEAD_DATA_DIR": str(pod.path / "local" / "data"),
                "FAIRLEAD_DATA_PEERS": f"127.0.8.{{}}:{port}", "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "2",
                "FAIRLEAD_RUN": "run", "FAIRLEAD_RUN_UID": "uid", "FAIRLEAD_TEAM": "default",
                "FAIRLEAD_POD_UID": f"uid-0-{node}", "FAIRLEAD_ATTEMPT": "0",
                run_key.FILE: str(pod.path / "local" / "key"),
            }  # fmt: skip
            processes.append(pod.start("python3 program.py", env=env, of_secrets={run_key.SECRET: "ab" * 32}))
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        assert [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)] == [
            (0, "0| 40\n"), (0, "0| 40\n"),
        ]  # fmt: skip
        assert sorted(RangeServer.requests) == [f"/{number:02}.bin" for number in range(40)]
    finally:
        for process in processes:
            process.kill()
            process.wait(TIMEOUT_S)
        store.shutdown()
        store.server_close()
