"""The most that the processes of a pod use, as its shim measures it."""

import json
import subprocess
import sys

from fairlead.runtime.usage import PeakRecorder

MIB = 1024**2


# In an interpreter of its own: a worker of the tests has other children.
MEASURED = """
import json, subprocess, sys
from fairlead.runtime.usage import PeakRecorder

usage = PeakRecorder()
program = "x = bytearray(200 << 20); sum(range(3 * 10**6)); print('ready', flush=True); input()"
child = subprocess.Popen(
    (sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
assert child.stdout.readline() == "ready\\n"
usage.look(0.0)
child.communicate("\\n", timeout=60)
print(json.dumps(usage.record()))
"""


def test_memory_of_children_and_their_processor_time_are_counted() -> None:
    ended = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(ended.stdout)
    assert 200 * MIB <= found["memory_bytes"] < 300 * MIB
    assert found["cpu_milli"] > 0


def test_a_peak_between_two_looks_is_known_of_each_rank() -> None:
    usage = PeakRecorder()
    usage.ended(0, 100 * 1024)
    usage.ended(1, 50 * 1024)
    assert usage.record()["memory_bytes"] == 150 * MIB
