"""Memory that checkpoints may take: what the machine has, and what the limit of a pod leaves."""

from pathlib import Path

import pytest

from fairlead.runtime.checkpoint.memory_room import room_in_memory

GB = 1_000_000_000


class Machine:
    """A machine of 1,000 GB, 600 of them free, with cgroups as files."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (place / "meminfo").write_text(f"MemTotal: {1000 * GB // 1024} kB\nMemAvailable: {600 * GB // 1024} kB\n")
        (place / "own").write_text("0::/\n")

    def group(self, path: str, **files: object) -> None:
        folder = self._place / "cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")

    def own(self, text: str) -> None:
        (self._place / "own").write_text(text)

    def room(self) -> float:
        place = self._place
        found = room_in_memory(memory=place / "meminfo", own=place / "own", cgroups=place / "cgroup")
        return round(found / GB, 1)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_tenth_of_the_machine_is_left_to_others(machine: Machine) -> None:
    assert machine.room() == 500.0


def test_a_limit_leaves_what_is_not_used_of_it(machine: Machine) -> None:
    machine.own("1:cpu:/x\n0::/pods/pod\n")
    stat = f"anon {20 * GB}\ninactive_file {10 * GB}\nactive_file 5"
    machine.group("pods/pod", max=100 * GB, current=40 * GB, stat=stat)
    assert machine.room() == 60.0  # 100, but for 30 that are used and 10 that are kept free


def test_the_limit_of_a_group_above_holds_too(machine: Machine) -> None:
    machine.own("0::/pods/pod\n")
    machine.group("pods/pod", max="max", current=5 * GB, stat="inactive_file 0")
    machine.group("pods", max=50 * GB, current=40 * GB, stat="inactive_file 0")
    assert machine.room() == 5.0


def test_the_first_version_of_cgroups_is_read_too(machine: Machine) -> None:
    machine.own("4:cpu,memory:/pod\n0::/\n")
    machine.group(
        "memory/pod", limit_in_bytes=10 * GB, usage_in_bytes=9 * GB, stat=f"inactive_file 1\ntotal_inactive_file {GB}"
    )
    machine.group("memory", limit_in_bytes=9_223_372_036_854_771_712, usage_in_bytes=9 * GB, stat="")
    assert machine.room() == 1.0


def test_a_limit_that_is_used_up_leaves_nothing(machine: Machine) -> None:
    machine.own("0::/pod\n")
    machine.group("pod", max=10 * GB, current=10 * GB, stat="")
    assert machine.room() < 0
