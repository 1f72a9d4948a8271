"""The memory of an operator process that has nothing to do, as on a small cluster at the edge."""

from pathlib import Path

import pytest

from tests.kubernetes.test_faces import Desk, desk, namespace, operating, phases, plane, prepared
from tests.waiting import until

__all__ = ["desk", "namespace", "plane", "prepared"]  # fixtures of the test below

pytestmark = pytest.mark.kubernetes
IDLE_MIB = 64


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(kib) / 1024


@pytest.mark.slow
def test_an_operator_takes_little_memory_before_and_after_its_first_run(desk: Desk) -> None:
    with operating(desk) as process:
        desk("run", "-d", desk.write("waits", resources={"gpu": 64}))
        until(lambda: "Pending" in phases(desk).values())
        until(lambda: "gpu" in desk("status", "waits").out.lower(), "a reason that the operator wrote")
        waiting = resident_mib(process.pid)
        desk("run", desk.write("short", fake={"run": "1s"}))
        after = resident_mib(process.pid)
        desk("delete", "--yes", "waits", "short")
    print(f"an operator: {waiting:.1f} MiB with a run that waits, {after:.1f} MiB after its first run")
    assert waiting <= IDLE_MIB
    assert after <= IDLE_MIB + 16
