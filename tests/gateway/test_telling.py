"""What demand.json, the access log and the metrics say of requests."""

import time
from collections.abc import Callable
from pathlib import Path

from fairlead.gateway.access_log import AccessLog, AccessLogEntry
from fairlead.gateway.request_metrics import BOUNDS_MS, SECONDS_KEPT, LatencyHistogram, ServiceMetrics
from tests.gateway.conftest import Opener
from tests.gateway.parts import Replica, revision, service
from tests.waiting import until

Make = Callable[..., Replica]


def test_demand_is_told_before_anybody_asks(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    told = door.demand()
    assert (told["version"], told["services"]) == (1, {})
    assert {type(told[key]) for key in ("port", "pid", "admin_port")} == {int}


def test_demand_counts_requests_and_errors_of_revisions(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas())})
    for path in ("/m/echo", "/m/status/404", "/m/status/500", "/m/fail"):
        door.ask(path)
    until(lambda: door.counted("m", "r1") == 4, "four requests")
    told = door.demand()["services"]["m"]
    assert (told["in_flight"], told["queued"], told["wake"]) == (0, 0, None)
    assert sum(arrivals for _, arrivals, _ in told["seconds"]) == 4
    r1 = told["revisions"]["r1"]
    assert (r1["requests"], r1["errors"], r1["latency_ms"]["count"]) == (4, 2, 4)
    assert [bound for bound, _ in r1["latency_ms"]["buckets"]] == list(BOUNDS_MS)
    assert r1["latency_ms"]["buckets"][-1][1] == 4


def test_a_line_of_the_log_says_what_became_of_a_request(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas("u-1"))})
    answer = door.ask('/m/a"b%22?secret=1', method="POST", body=b"hello", headers={"X-Request-Id": "id-1"})
    until(door.log, "line")
    (line,) = door.log()
    assert line.pop("time").endswith("Z")
    assert line.pop("seconds") > 0
    assert line == {
        "request_id": "id-1", "remote": "127.0.0.1", "method": "POST", "path": '/m/a"b%22', "service": "m",
        "revision": "r1", "replica": "u-1", "team": "", "status": 200, "queue_s": 0.0, "tries": 1, "bytes_in": 5,
        "bytes_out": len(answer.body), "error": "",
    }  # fmt: skip


def test_the_log_is_rotated_by_size_and_keeps_three_files(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log", most_bytes=1000)
    for number in range(30):
        log.add(AccessLogEntry(float(number), path=f"/{number}"))
        log.flush()
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["access.log", "access.log.1", "access.log.2", "access.log.3"]
    assert all(0 < each.stat().st_size <= 1000 for each in files)
    assert '"/29"' in (tmp_path / "access.log").read_text()


def test_a_log_that_cannot_be_written_loses_lines_and_counts_them(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "missing" / "access.log", most_bytes=1000)
    log.add(AccessLogEntry(0.0))
    log.flush()
    assert log.lost == 1
    (tmp_path / "missing").mkdir()
    log.add(AccessLogEntry(0.0))
    log.flush()
    log.close()
    assert (tmp_path / "missing" / "access.log").read_text().count("\n") == 1


def test_metrics_count_by_service_revision_and_status(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service(replicas(), max_queue=0), "asleep": service(path="/asleep", hosts=[], max_queue=0)})
    for path in ("/m/echo", "/m/status/500", "/asleep/x", "/nowhere"):
        door.ask(path)
    expected = {
        'fairlead_gateway_requests_total{code="200",revision="r1",service="m"} 1.0',
        'fairlead_gateway_requests_total{code="500",revision="r1",service="m"} 1.0',
        'fairlead_gateway_requests_total{code="429",revision="",service="asleep"} 1.0',
        'fairlead_gateway_requests_total{code="404",revision="",service=""} 1.0',
        'fairlead_gateway_request_duration_seconds_bucket{le="+Inf",revision="r1",service="m"} 2.0',
        'fairlead_gateway_replicas{revision="r1",service="m"} 1.0',
        'fairlead_gateway_revision_weight{revision="r1",service="m"} 1.0',
        'fairlead_gateway_cold_start_seconds_count{service="asleep"} 0.0',
        "fairlead_gateway_routes_valid 1.0",
        "fairlead_gateway_defects_total 0.0",
    }
    until(lambda: expected <= {*door.ask("/metrics", admin=True).body.decode().splitlines()}, "all of them")


def test_weights_are_those_of_requests_and_not_of_copies(open_door: Opener, replicas: Make) -> None:
    old, new, copy = replicas("old"), replicas("new"), replicas("copy")
    revisions = [revision("r1", old, weight=9), revision("r2", new, weight=1), revision("r3", copy, shadow=True)]
    door = open_door({"m": service(revisions=revisions)})
    told = door.ask("/metrics", admin=True).body.decode().splitlines()
    assert [each for each in told if each.startswith("fairlead_gateway_revision_weight{")] == [
        f'fairlead_gateway_revision_weight{{revision="r{number}",service="m"}} {weight}.0'
        for number, weight in ((1, 9), (2, 1), (3, 0))
    ]


def test_a_cold_start_is_counted_once_with_how_long_it_took(open_door: Opener, replicas: Make) -> None:
    door = open_door({"m": service()})
    beside = [door.ask_beside() for _ in range(2)]
    until(lambda: door.demand()["services"].get("m", {}).get("queued") == 2, "two that wait")
    time.sleep(0.2)
    door.write_routes({"m": service(replicas())})
    assert [each.answer().status for each in beside] == [200, 200]
    told = door.ask("/metrics", admin=True).body.decode().splitlines()
    figures = dict(each.rsplit(" ", 1) for each in told if each.startswith("fairlead_gateway_cold_start_seconds_"))
    assert figures['fairlead_gateway_cold_start_seconds_count{service="m"}'] == "1.0"
    assert 0.2 <= float(figures['fairlead_gateway_cold_start_seconds_sum{service="m"}']) < 60.0


def test_the_door_says_that_it_is_open(open_door: Opener) -> None:
    door = open_door({})
    assert (door.ask("/-/healthz").status, door.ask("/healthz", admin=True).status) == (200, 200)


def test_buckets_are_cumulative() -> None:
    latencies = LatencyHistogram()
    for duration_ms in (0.5, 1.0, 1.1, 1e9):
        latencies.add(duration_ms)
    told = latencies.cumulative()
    assert told[:2] == [(1.0, 2), (2.5, 3)]
    assert told[-1] == (BOUNDS_MS[-1], 3)
    assert latencies.count == 4


def test_each_second_has_its_arrivals_and_the_most_at_a_time() -> None:
    tally = ServiceMetrics()
    tally.arrive(10.1)
    tally.arrive(10.2)
    tally.in_flight -= 1
    tally.arrive(12.0)
    tally.look(13.5)
    assert tally.demand(queued=0, epoch=13.5)["seconds"] == [[10, 2, 2], [12, 1, 2], [13, 0, 2]]
    assert tally.demand(queued=0, epoch=12.0 + SECONDS_KEPT)["seconds"] == [[13, 0, 2]]
