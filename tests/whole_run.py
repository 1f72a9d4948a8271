"""A whole run of the tests: which files begin first, what took how long, and what stood still when it was ended.

Loaded in the process that starts the workers and, as all plugins are, in each worker.
"""

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.scheduling import LongestFirst, file_of

SECONDS = Path(__file__).with_name("seconds.json")
"""How long each file took, where that was seconds; ``FAIRLEAD_WRITE_SECONDS=1`` writes it anew after a whole run."""

SHORT_S = 2.0
"""Files that took less are in no record."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> LongestFirst | None:
    """A file stays with one worker, and the longest begin first."""
    if config.getoption("dist") != "loadfile":
        return None
    recorded = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    return LongestFirst(len(config.getoption("tx")), recorded)


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Course(), "fairlead-course")


class Course:
    """Which tests have begun and not ended, and how long each file took."""

    def __init__(self) -> None:
        self._begun: dict[str, float] = {}
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += getattr(report, "duration", 0.0)
        if report.when not in ("setup", "call", "teardown"):  # its worker is dead
            self._begun.pop(report.nodeid, None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self._begun:
            terminalreporter.section("had not ended")
            for test, begun in self._begun.items():
                terminalreporter.write_line(f"{test}  for {time.monotonic() - begun:.0f} s")
        if os.environ.get("FAIRLEAD_WRITE_SECONDS") == "1" and exitstatus in (0, 1):
            taken = {file: round(seconds, 1) for file, seconds in sorted(self._seconds.items()) if seconds >= SHORT_S}
            SECONDS.write_text(json.dumps(taken, indent=2) + "\n")
