"""Logs and files on two real nodes, through the command line: what nodes without a kubelet cannot show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import DEFINITIONS
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import COMMAND, Desk, a_desk, objects, operating
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.processes import Child
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

PROGRAM = """
import os, sys, time
print("rank", os.environ["RANK"], "start", os.environ["FAIRLEAD_ATTEMPT"], "reads", open("word.txt").read(), flush=True)
print("complaint", file=sys.stderr, flush=True)
time.sleep(float(sys.argv[1]))
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(lambda: RealCluster(2), request) as made:
        query = "fieldManager=test&force=true"
        for each in definitions():
            path = f"{DEFINITIONS}/{each['metadata']['name']}?{query}"
            made.request("PATCH", path, each, kind="apply-patch+yaml")
        for content in render_roles():
            applied(made, content)
        yield made


def write(desk: Desk, name: str, lasts_s: float) -> str:
    content = {
        "name": name,
        "image": images.PYTHON,
        "workdir": ".",
        "run": f"python3 train.py {lasts_s}",
        "nodes": 2,
        "resources": {"cpu": 0.2, "memory": "128Mi"},
    }
    (desk.directory / "train.yaml").write_text(yaml.safe_dump(content))
    return "train.yaml"


def test_a_run_with_its_files_is_followed_and_its_output_stays_when_it_is_stopped(
    cluster: RealCluster, tmp_path: Path
) -> None:
    new_namespace(cluster, "faces")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "faces", tmp_path / "desk")
    (desk.directory / "word.txt").write_text("its file")
    (desk.directory / "train.py").write_text(PROGRAM)
    with operating(desk):
        ended = desk("run", write(desk, "short", 1), timeout_s=120)
        lines = sorted(ended.out.splitlines())
        expected = [f"[{rank}] {text}" for rank in (0, 1) for text in ("complaint", "done", _greeting(rank, 0))]
        assert lines == sorted(expected)
        told = objects(desk("logs", "short", "--json").out)
        assert [each["at"] for each in told] == sorted(each["at"] for each in told)
        assert {(each["rank"], each["stream"]) for each in told if each["text"] == "complaint"} == {(0, "e"), (1, "e")}

        desk("run", "-d", write(desk, "long", 600))
        shown = tmp_path / "followed"
        follow = [*COMMAND, "logs", "-f", "long"]
        with (
            shown.open("w") as file,
            Child(follow, cwd=desk.directory, env=desk.environ, stdout=file, text=True) as follower,
        ):
            # Whether the follower has reached the pod before it is gone or not.
            until(lambda: _greeting(1, 0) in desk("logs", "long").out)
            cluster.request("DELETE", f"/api/v1/namespaces/{desk.namespace}/pods/long-0-1")
            # Both ranks have said all that they say before they sleep.
            until(lambda: all(len(_of(desk, "long", rank=rank, attempt=1)) >= 2 for rank in (0, 1)), timeout_s=120)
            # The pod is gone with its log; what the operator kept of it is still told.
            until(lambda: _of(desk, "long", rank=1, attempt=0) != [])
            desk("stop", "long", timeout_s=120)
            assert follower.wait(30) == 0
            followed = shown.read_text().splitlines()
        for attempt in (0, 1):
            for rank in (0, 1):
                assert f"[{rank}] {_greeting(rank, attempt)}" in followed
        greetings = [each for each in followed if "complaint" not in each]
        assert len(greetings) == len(set(greetings)), greetings
        until(lambda: len(_of(desk, "long", rank=0, attempt=1)) >= 2)
        desk("delete", "--yes", "long", "short", timeout_s=120)
        until(lambda: _maps(cluster, desk) == [])


# With what containerd puts before each line, more than the 10 MiB after which kubelet begins a new file.
NUM_LINES = 90_000
CHATTY = f"""
import os, time
for number in range({NUM_LINES}):
    print(number, "x" * 90)
print("all said", flush=True)
time.sleep(600)
"""


def test_what_kubelet_rotates_away_is_told_and_the_last_lines_come_alone(cluster: RealCluster, tmp_path: Path) -> None:
    new_namespace(cluster, "chatty")
    (tmp_path / "desk").mkdir()
    desk = a_desk(cluster, "chatty", tmp_path / "desk")
    (desk.directory / "train.py").write_text(CHATTY)
    with operating(desk):
        desk("run", "-d", write(desk, "chatty", 0))
        until(lambda: "all said" in desk("logs", "chatty", "--tail", "2", "--rank", "0").out, timeout_s=360)
        # kubelet looks every ten seconds.
        until(lambda: "were dropped" in desk("status", "chatty").out, timeout_s=120)
        told = objects(desk("logs", "chatty", "--json", "--rank", "1").out)
        note, lines = told[0], [each for each in told[1:] if each["text"] != "all said"]
        assert (note["stream"], note["rank"]) == ("f", 1)
        # On a fast node all is said before kubelet begins a new file, which then holds counts alone.
        num_dropped = NUM_LINES + 1 - len(told[1:])
        assert note["text"].startswith(f"... {num_dropped:,} lines (")
        assert [int(each["text"].split()[0]) for each in lines] == list(range(NUM_LINES - len(lines), NUM_LINES))
        desk("stop", "chatty", timeout_s=120)
        until(lambda: "the pod is gone" in desk("logs", "chatty").out, timeout_s=60)
        desk("delete", "--yes", "chatty", timeout_s=120)


def _greeting(rank: int, attempt: int) -> str:
    return f"rank {rank} start {attempt} reads its file"


def _of(desk: Desk, name: str, *, rank: int, attempt: int) -> list[dict[str, Any]]:
    # An attempt that has not begun is an error, which says so, and no line.
    return objects(desk("logs", name, "--json", "--rank", str(rank), "--attempt", str(attempt), code=None).out)


def _maps(cluster: RealCluster, desk: Desk) -> list[str]:
    """The ConfigMaps that belong to runs."""
    content = cluster.request("GET", f"/api/v1/namespaces/{desk.namespace}/configmaps")
    names = [each["metadata"]["name"] for each in content["items"]]
    return [name for name in names if name.startswith(("fairlead-log", "fairlead-workdir"))]
