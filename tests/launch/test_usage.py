"""The most that the processes of a pod use, as its shim measures it."""

import subprocess
import sys

from fairlead.runtime.usage import Usage

MIB = 1024**2


def test_memory_of_children_and_their_processor_time_are_counted() -> None:
    usage = Usage()
    program = "x = bytearray(200 << 20); sum(range(3 * 10**6)); print('ready', flush=True); input()"
    with subprocess.Popen(
        (sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        usage.look(0.0)
        child.communicate("\n", timeout=60)
    found = usage.record()
    assert 200 * MIB <= found["memory_bytes"] < 300 * MIB
    assert found["cpu_milli"] > 0


def test_a_peak_between_two_looks_is_known_of_each_rank() -> None:
    usage = Usage()
    usage.ended(0, 100 * 1024)
    usage.ended(1, 50 * 1024)
    assert usage.record()["memory_bytes"] == 150 * MIB
