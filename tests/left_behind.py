"""What tests have left on the machine when all is over: processes that live on, and mounts."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 15.0
"""How long what has just been told to end may take."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process, what it runs, and the test that started it or its parents."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.test or 'no test'}: {self.command}"


def survivors(marker: str) -> list[Survivor]:
    """The processes whose environment has ``marker``, a ``NAME=value``, but for zombies and this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone, or not ours
            environ = (entry / "environ").read_bytes().split(b"\0")
            if marker.encode() in environ and int(entry.name) != os.getpid():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                named = [line for line in environ if line.startswith(b"PYTEST_CURRENT_TEST=")]
                test = named[0].partition(b"=")[2].decode(errors="replace") if named else ""
                found.append(Survivor(int(entry.name), command, test))
    return sorted(found, key=lambda each: each.pid)


def end_survivors(marker: str, patience_s: float) -> list[Survivor]:
    """Those that have not ended after a while, which are killed."""
    deadline = time.monotonic() + patience_s
    while (left := survivors(marker)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    return left


def unmount_below(directory: Path) -> list[str]:
    """Take away what is mounted there: pytest could never remove it, and would end with an error each time."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [place for line in lines if Path(place := line.split()[4]).is_relative_to(directory)]
    for place in reversed(mounts):
        subprocess.run(["umount", "--lazy", place], check=False, timeout=60)
    return mounts
