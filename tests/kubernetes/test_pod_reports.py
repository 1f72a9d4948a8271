"""What pods say of themselves survives the size of its way, and what is not ours is told as nothing."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.manifests.conditions import moment
from fairlead.cluster.kubernetes.workloads.pod_reports import read_ending, read_last_words, read_report
from fairlead.cluster.local.pod_files import progress_of
from fairlead.cluster.records import dump, load, plain
from fairlead.runtime.reporting import ENDING, MOST_EXIT_BYTES, MOST_REPORT_BYTES, exit_code, pack_exit, pack_report
from fairlead.state.snapshot import Usage


def a_rank(rank: int, code: int | None = 0, *, signal: int | None = None, at: float = 1.0, tail: Any = ()) -> Any:
    ended = {"rank": rank, "exit_code": code, "signal": signal, "at": at, "out_of_memory": False}
    return {**ended, "tail": list(tail)}


def a_record(*ranks: Any, **changes: Any) -> dict[str, Any]:
    return {"at": 5.0, "message": None, "setup_failed": False, "ranks": list(ranks), "tail": [], **changes}


def a_pod(message: str | None, *, code: int = 1, reason: str = "Error", signal: int | None = None) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason, "finishedAt": "2026-11-21T10:00:00Z", "signal": signal}
    if message is not None:
        ended["message"] = message
    return {"status": {"containerStatuses": [{"name": "ranks", "state": {"terminated": ended}}]}}


def test_a_pod_of_eight_ranks_says_how_each_ended_and_what_the_first_said() -> None:
    tail = [f"line {n} " + "x" * 200 for n in range(40)]
    ranks = [a_rank(n, None, signal=15, at=9.0) for n in range(7)]
    packed = pack_exit(a_record(*ranks, a_rank(7, 1, at=2.0, tail=tail)))
    assert len(packed) <= MOST_EXIT_BYTES
    ending = read_ending(a_pod(packed.decode()), ranks=range(8))
    assert ending is not None
    assert len(ending.exits) == 8
    assert ending.exits[7].exit_code == 1
    assert 10 < len(ending.exits[7].tail) < 40
    assert ending.exits[7].tail[-1] == tail[-1]
    assert ending.exits[0].tail == ()


def test_of_a_thousand_ranks_those_that_failed_first_are_told() -> None:
    ranks = [a_rank(n, None, signal=15, at=100.0 + n) for n in range(1000)]
    ranks[500] = a_rank(500, 3, at=1.0, tail=["the culprit"])
    packed = pack_exit(a_record(*ranks))
    assert len(packed) <= MOST_EXIT_BYTES
    ending = read_ending(a_pod(packed.decode()), ranks=range(1000))
    assert ending is not None
    assert (ending.exits[0].rank, ending.exits[0].tail) == (500, ("the culprit",))


def test_a_report_of_a_container_that_goes_on_has_the_end_of_its_program(tmp_path: Path) -> None:
    packed = pack_exit(a_record(a_rank(0, 3, tail=["no"])))
    (tmp_path / ENDING).write_bytes(packed)
    report = read_report(pack_report(str(tmp_path)))
    assert report is not None
    assert report.ending is not None
    assert [(each.exit_code, each.tail) for each in report.ending.exits] == [(3, ("no",))]
    (tmp_path / ENDING).write_text('{"form": 2}')
    unknown = read_report(pack_report(str(tmp_path)))
    assert unknown is not None
    assert unknown.ending is None


def reports(directory: Path, *said: dict[str, Any]) -> str:
    """A pod's directory in which its ranks have said so much."""
    for rank, report in enumerate(said):
        (directory / f"rank-{rank}.json").write_text(json.dumps(report))
    return str(directory)


def test_a_pod_says_how_far_its_ranks_came(tmp_path: Path) -> None:
    said = [{"step": step, "updated_at": 7.0, "metrics": {"f1": 0.5}, "checkpoint_step": 30} for step in (30, 31, 31)]
    packed = pack_exit(a_record(a_rank(0, None, signal=9)), reports(tmp_path, *said))
    assert read_last_words(a_pod(packed.decode())) == progress_of(said[1])
    long = {**said[0], "metrics": {f"metric-{n}": 0.5 for n in range(200)}}
    packed = pack_exit(a_record(a_rank(0, None, signal=9)), reports(tmp_path, long, long, long))
    assert len(packed) <= MOST_EXIT_BYTES
    assert read_last_words(a_pod(packed.decode())) == progress_of({**long, "metrics": {}})


@pytest.mark.parametrize("said", [None, "x", {"form": 1}, {"form": 1, "progress": {"metrics": {"loss": "low"}}}])
def test_a_pod_that_says_nothing_of_its_progress_came_nowhere(said: Any) -> None:
    assert read_last_words(a_pod(json.dumps(said))) is None


@given(st.lists(st.text(max_size=3000), max_size=40), st.integers(1, 64), st.text(max_size=6000), st.integers(0, 20))
def test_no_record_is_larger_than_what_kubelet_keeps(tail: list[str], num: int, message: str, metrics: int) -> None:
    record = a_record(*(a_rank(n, 1, at=1.5, tail=tail) for n in range(num)), message=message)
    with TemporaryDirectory() as directory:
        said = {"step": 10, "metrics": {f"metric-{n}": 0.5 for n in range(metrics)}}
        packed = pack_exit(record, reports(Path(directory), said))
    assert len(packed) <= MOST_EXIT_BYTES
    assert read_ending(a_pod(packed.decode()), ranks=range(num)) is not None


def test_a_container_that_was_killed_at_its_memory_limit_speaks_for_all_its_ranks() -> None:
    ending = read_ending(a_pod(None, code=137, reason="OOMKilled"), ranks=range(4, 6))
    assert ending is not None
    assert [(each.rank, each.exit_code, each.signal, each.out_of_memory) for each in ending.exits] == [
        (4, None, 9, True),
        (5, None, 9, True),
    ]
    assert ending.exits[0].at == 1_795_255_200.0


def test_a_container_that_still_runs_has_no_ending() -> None:
    running = {"status": {"containerStatuses": [{"name": "ranks", "state": {"running": {}}}]}}
    assert read_ending(running, ranks=range(1)) is None
    assert read_ending({"status": {}}, ranks=range(1)) is None


def test_another_container_s_end_is_not_the_ranks() -> None:
    pod = a_pod(None, code=0)
    pod["status"]["containerStatuses"][0]["name"] = "proxy"
    assert read_ending(pod, ranks=range(1)) is None


@pytest.mark.parametrize("text", ["", "hello", "[1]", '{"form": 99}', '{"form": 1, "events": [[1], null, "x"]}'])
def test_lines_that_are_not_ours_or_damaged_break_nothing(text: str) -> None:
    report = read_report(text)
    assert report is None or report.events == ()


@pytest.mark.parametrize(
    ("ranks", "code"),
    [([], 1), ([a_rank(0)], 0), ([a_rank(0, 3, at=2.0), a_rank(1, 4, at=1.0)], 4), ([a_rank(0, None, signal=9)], 137)],
)
def test_the_exit_code_is_that_of_the_first_failure(ranks: list[Any], code: int) -> None:
    assert exit_code(a_record(*ranks)) == code


def test_a_report_with_more_events_than_fit_tells_the_latest(tmp_path: Path) -> None:
    lines = [json.dumps({"at": float(n), "type": "Noted", "message": f"{n} " + "x" * 1000}) for n in range(100)]
    (tmp_path / "rank-0.events.jsonl").write_text("\n".join(lines))
    (tmp_path / "rank-0.json").write_text(json.dumps({"step": 1, "updated_at": 1.0}))
    line = pack_report(str(tmp_path))
    assert len(line) <= MOST_REPORT_BYTES
    report = read_report(line)
    assert report is not None
    assert report.events[-1].place == 99
    assert len(report.events) == 20
    assert report.progress is not None


def test_output_is_the_sign_of_life_of_ranks_that_report_nothing(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("x")
    report = read_report(pack_report(str(tmp_path)))
    assert report is not None
    assert report.active_at == (tmp_path / "output.log").stat().st_mtime
    assert report.progress is None


def test_a_pod_says_the_most_that_it_used() -> None:
    record = a_record(a_rank(0), a_rank(1), usage={"memory_bytes": 5, "cpu_milli": 7})
    ending = read_ending(a_pod(pack_exit(record).decode(), code=0), ranks=range(2))
    assert ending is not None
    assert ending.usage == Usage(memory_bytes=5, cpu_milli=7, ranks=2)
    record = a_record(a_rank(0), usage={"memory_bytes": 5, "cpu_milli": 7, "gpu_memory_bytes": 9})
    with_gpu = read_ending(a_pod(pack_exit(record).decode(), code=0), ranks=range(1))
    assert with_gpu is not None
    assert with_gpu.usage == Usage(memory_bytes=5, cpu_milli=7, ranks=1, gpu_memory_bytes=9)
    older = read_ending(a_pod(pack_exit(a_record(a_rank(0))).decode(), code=0), ranks=range(1))
    assert older is not None
    assert older.usage is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=12,
)
KEYS = (
    "ranks", "tail", "tail_of", "hang", "usage", "message", "setup_failed", "progress", "events", "gpus", "ending",
    "started_at", "active_at", "metrics", "asks", "drift", "step", "loss", "throughput_unit", "updated_at",
)  # fmt: skip
RANK = st.tuples(*[JSON | st.integers(0, 3)] * 5).map(list)
RECORD = st.recursive(
    JSON | st.lists(RANK, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=6).map(lambda keys: {"form": 1, **keys}),
    max_leaves=8,
)
POISON = (
    '{"form":1,"ranks":[1]}', '{"form":1,"ranks":5}', '{"form":1,"tail":3,"ranks":[[0,0,null,1,0]]}',
    '{"form":1,"hang":5}', '{"form":1,"usage":[Infinity,1],"ranks":[]}', "[" * 4_000,
    '{"form":1,"ranks":[[0,0,null,1e999,0]]}',
    '{"form":1,"ranks":[[0,{},[],"x",{}]]}', '{"form":1,"progress":{"loss":' + "9" * 400 + "}}", '{"form":[]}',
    '{"form":1,"message":{"a":1},"ranks":[["0",1,2,3,4]]}', '{"form":1,"ending":{"form":1,"ranks":{}}}',
)  # fmt: skip


@given(RECORD)
def test_whatever_a_program_writes_as_a_report_gives_typed_values_or_nothing(record: Any) -> None:
    text = json.dumps(record)
    ending = read_ending(a_pod(text), ranks=range(2))
    assert ending is not None
    for each in (ending, read_report(text), read_last_words(a_pod(text))):
        if each is not None:
            json.dumps(plain(each))
            assert load(type(each), dump(each)) is not None
    for rank in ending.exits:
        assert type(rank.rank) is int
        assert moment(rank.at).endswith("Z")
        assert all(type(line) is str for line in rank.tail)


@pytest.mark.parametrize("message", POISON, ids=lambda message: message[:30])
def test_a_poisoned_termination_message_is_that_of_a_program_which_reported_nothing(message: str) -> None:
    pod = a_pod(message, code=3)
    ending = read_ending(pod, ranks=range(2))
    assert ending is not None
    assert [(each.rank, each.exit_code) for each in ending.exits] in ([(0, 3), (1, 3)], [(0, 0)], [])
    read_last_words(pod)
    read_report(message)
