"""``fairlead diagnose --trace DIR``: stragglers in the traces of PyTorch's profiler."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli.commands.diagnose import diagnose
from fairlead.errors import InvalidSpec
from fairlead.traces.profiler_traces import own_times_of_traces
from tests.ports import free_port

pytest.importorskip("numpy")
STEP_US = 1000.0


def event(name: str, begin: float, length: float, category: str) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": begin, "dur": length, "cat": category}


def trace(rank: int, own_us: float, *, size: int = 2, is_on_gpu: bool = False, steps: int = 4) -> dict[str, Any]:
    """Steps in which a rank computes, and waits in a collective that began halfway, until a step of 1 ms is over."""
    events = [{"ph": "M", "name": "process_name"}]
    work, collective = ("kernel", "kernel") if is_on_gpu else ("cpu_op", "user_annotation")
    name = "ncclDevKernel_AllReduce_Sum_f32" if is_on_gpu else "gloo:all_reduce"
    for step in range(2, 2 + steps):
        begin = step * STEP_US
        events += [
            event(f"ProfilerStep#{step}", begin, STEP_US, "user_annotation"),
            event("volta_sgemm" if is_on_gpu else "aten::linear", begin, own_us, work),
            event(name, begin + own_us / 2, STEP_US - own_us / 2, collective),
        ]
        if is_on_gpu:
            events.append(event("aten::linear", begin, STEP_US, "cpu_op"))
    return {"distributedInfo": {"rank": rank, "world_size": size}, "traceEvents": events}


def write(folder: Path, *traces: Any) -> Path:
    for index, content in enumerate(traces):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"host_{index}.pt.trace.json").write_text(text)
    return folder


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_the_time_in_which_a_rank_waits_in_a_collective_is_not_its_own(tmp_path: Path, is_on_gpu: bool) -> None:
    times = own_times_of_traces(
        write(tmp_path, trace(0, 300.0, is_on_gpu=is_on_gpu), trace(1, 900.0, is_on_gpu=is_on_gpu))
    )
    assert times[0].own_us == (300,) * 4
    assert times[1].own_us == (900,) * 4
    assert [(of.step, of.step_s, of.of_gpu) for of in times.values()] == [(5, STEP_US / 1e6, is_on_gpu)] * 2


def test_the_slow_rank_of_packed_traces_is_named(tmp_path: Path) -> None:
    for rank in range(3):
        with gzip.open(tmp_path / f"{rank}.json.gz", "wt") as file:
            json.dump(trace(rank, 800.0 if rank == 1 else 400.0, size=3), file)
    result = CliRunner().invoke(diagnose, ["--trace", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert (report["cause"], report["worst"]) == ("worker", {"data_rank": 1, "stage": 0})


GAP = trace(0, 300.0)
GAP["traceEvents"] = [event for event in GAP["traceEvents"] if event["name"] != "ProfilerStep#3"]


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ((), "has no traces"),
        ((trace(0, 300.0),), "lacks the traces of ranks 1 of 2"),
        ((trace(0, 300.0), trace(0, 300.0)), "two traces of rank 0"),
        ((trace(0, 300.0, size=1),), "has one rank"),
        ((trace(0, 300.0, steps=0),), "has no steps"),
        ((GAP, trace(1, 300.0)), "with gaps"),
        (({"traceEvents": []},), "names no rank"),
        (({"distributedInfo": {"rank": 10**30, "world_size": 10**31}},), "names no rank"),
        (("[" * 100_000,), "cannot be read"),
        (('{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": {"a": 1}}',), "has no steps"),
        (
            ('{"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": [1, {"ph": "X", "ts": "now"}]}',),
            "no steps",
        ),
    ],
)
def test_what_is_no_trace_of_every_rank_is_refused_with_what_is_missing(
    tmp_path: Path, traces: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InvalidSpec, match=message):
        own_times_of_traces(write(tmp_path, *traces))


PROGRAM = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule, tensorboard_trace_handler
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
steps = schedule(wait=1, warmup=1, active=8)
with profile(on_trace_ready=tensorboard_trace_handler("traces"), schedule=steps) as profiler:
    for _ in range(10):
        if dist.get_rank() == 1:
            time.sleep(0.3)
        model(torch.randn(8, 64)).sum().backward()
        profiler.step()
"""


@pytest.mark.slow
def test_the_slow_rank_of_a_real_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, **meeting, "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [rank.wait(300.0) for rank in ranks] == [0, 0]
    result = CliRunner().invoke(diagnose, ["--trace", str(tmp_path / "traces"), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["worst"] == {"data_rank": 1, "stage": 0}
    assert report["slowdown"] > 1.3
