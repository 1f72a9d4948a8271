"""On a machine that several people share, CUDA_VISIBLE_DEVICES of the shell says which GPUs are for its runs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fairlead.cluster.local import nvml
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.visible_gpus import visible
from fairlead.errors import Conflict
from fairlead.policy.decide import decide
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Gpu, Intent, Phase
from tests.builders import change, plan, status, training
from tests.gpu_machine import play_gpus
from tests.processes import Child

VARIABLE = "CUDA_VISIBLE_DEVICES"
GPUS = tuple(Gpu(uuid=f"GPU-{name}", model="A100", memory_bytes=1 << 30) for name in ("aa1", "ab2", "bc3"))


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, "aa1 ab2 bc3"),
        ("1", "ab2"),
        ("2,0", "aa1 bc3"),
        (" 0 , 1 ", "aa1 ab2"),
        ("GPU-b", "bc3"),
        ("GPU-ab2,0", "aa1 ab2"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("7", ""),
        ("0,7,1", "aa1"),
        ("0,0,1", "aa1"),
        ("GPU-a,2", ""),
        ("MIG-aa1/1/0", ""),
    ],
)
def test_a_value_leaves_the_gpus_that_cuda_would_show(value: str | None, names: str) -> None:
    assert [gpu.uuid.removeprefix("GPU-") for gpu in visible(GPUS, value)] == names.split()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A machine with three GPUs, and no supervisor."""
    play_gpus(monkeypatch, tmp_path / "nvml", "580.1", (8, 0), (8, 0), (8, 0))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("FAIRLEAD_RUN_UID", raising=False)
    cluster = LocalCluster.open(tmp_path / "home")
    yield cluster
    cluster.close()


def of_gpus(name: str, count: int = 1) -> Training:
    spec: Training = training(name, resources=Resources(gpu=GpuRequest(milli=1000 * count)))
    return spec


def seen_by_the_supervisor(home: Home) -> list[str]:
    loop = LocalCluster(home, is_loops=True)
    try:
        (node,) = loop.snapshot().nodes
        return [gpu.uuid for gpu in node.gpus]
    finally:
        loop.close()


def test_runs_get_the_gpus_of_the_shell_that_submitted_them_whatever_started_the_supervisor(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_by_the_supervisor(cluster.home) == ["GPU-0", "GPU-1", "GPU-2"]
    monkeypatch.setenv(VARIABLE, "1")
    assert [gpu.uuid for gpu in cluster.node().gpus] == ["GPU-1"]
    run = cluster.submit(of_gpus("one"))
    monkeypatch.setenv(VARIABLE, "GPU-0")  # as in a pod, whose end may start a supervisor
    assert seen_by_the_supervisor(cluster.home) == ["GPU-1"]
    monkeypatch.setenv("FAIRLEAD_RUN_UID", run.uid)
    cluster.submit(of_gpus("by-a-program-of-the-run"))
    assert seen_by_the_supervisor(cluster.home) == ["GPU-1"]


def test_a_shell_with_other_gpus_waits_or_gets_a_directory_of_its_own(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    first = cluster.submit(of_gpus("first"))
    monkeypatch.delenv(VARIABLE)
    cluster.submit(training("without-gpus"))
    with pytest.raises(
        Conflict, match=f"This shell has {VARIABLE} unset, and unfinished runs .* {VARIABLE}=1"
    ) as caught:
        cluster.submit(of_gpus("second"))
    remedy = f"{cluster.home.path}-gpus-all"
    assert f"`export FAIRLEAD_HOME={remedy}`" in str(caught.value)
    other = LocalCluster.open(Path(remedy))
    other.submit(of_gpus("second"))
    assert len(other.node().gpus) == 3
    other.close()
    assert len(cluster.node().gpus) == 1
    ended = change(cluster.store.get(first.uid), status=status(Phase.STOPPED), intent=Intent.STOP)
    cluster.apply(plan(ended))
    assert len(cluster.node().gpus) == 3
    cluster.submit(of_gpus("second"))
    assert seen_by_the_supervisor(cluster.home) == ["GPU-0", "GPU-1", "GPU-2"]


def computing(monkeypatch: pytest.MonkeyPatch, **pids: int) -> None:
    """Have processes compute on GPUs, by their number: ``gpu1=4711``."""
    module = sys.modules["pynvml"]
    monkeypatch.setattr(nvml, "DRIVERS", ("/",))
    by_index = {int(name.removeprefix("gpu")): pid for name, pid in pids.items()}
    monkeypatch.setattr(module, "nvmlDeviceGetHandleByUUID", lambda uuid: int(uuid.removeprefix("GPU-")), raising=False)
    monkeypatch.setattr(
        module,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda index: [SimpleNamespace(pid=by_index[index])] if index in by_index else [],
        raising=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs of another user")
def test_a_gpu_on_which_another_user_computes_is_given_to_no_run(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cluster.submit(of_gpus("all-three", 3))
    loop = LocalCluster(cluster.home, is_loops=True)
    try:
        with Child(["sleep", "600"], user=65534) as stranger, Child(["sleep", "600"]) as mine:
            computing(monkeypatch, gpu0=mine.pid, gpu1=stranger.pid, gpu2=999_999_999)
            seen = loop.snapshot()
            (pod,) = seen.pods
            assert (pod.workload_uid, pod.grant.gpu_uuids) == ("", ("GPU-1",))
            (decided,) = decide(seen, 0.0).changes
            assert decided.create == ()
            assert decided.status is not None
            message = decided.status.reason.message
            assert message.startswith("needs 1 node with 3 GPU; localhost has 2 of 3 GPUs free"), message
            stranger.kill()
            mine.kill()
        (decided,) = decide(loop.snapshot(), 0.0).changes
        assert [create.grant.gpu_uuids for create in decided.create] == [("GPU-0", "GPU-1", "GPU-2")]
        assert run.uid == decided.workload_uid
    finally:
        loop.close()
