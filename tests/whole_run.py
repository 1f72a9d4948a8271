"""A whole run of the tests: which files begin first, what took how long, what had not ended, what was left behind.

Loaded in the process that starts the workers and, as all plugins are, in each worker.
"""

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests import left_behind
from tests.compiling import compile_new
from tests.left_behind import Survivor, end_survivors, unmount_below
from tests.scheduling import LongestFirst, file_of, set_up_of

SECONDS = Path(__file__).with_name("seconds.json")
"""How long each file took, where that was seconds; ``FAIRLEAD_WRITE_SECONDS=1`` brings those that ran up to date.

What it took with ``-m slow`` or ``-m long`` stands by itself, as a file may have tests of each kind.
"""

NUM_WORKERS, NUM_WORKERS_LONG = 6, 5
SCHEDULER = pytest.StashKey[LongestFirst]()

SHORT_S = 2.0
"""Files that took less are in no record."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", type=float, metavar="MINUTES", help="begin no further file of tests after so long, and say which"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> LongestFirst | None:
    """A file stays with one worker, and the longest begin first."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = LongestFirst(
        len(config.getoption("tx")),
        _recorded()[_record_of(config)],
        lambda file: set_up_of(config.rootpath / file),
        Budget(config.getoption("budget")).is_used_up,
    )
    config.stash[SCHEDULER] = scheduler
    return scheduler


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For two processors. Most tests wait, while each of the long ones keeps a control plane or a model busy."""
    return NUM_WORKERS_LONG if _record_of(config) == "long" else NUM_WORKERS


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        if len(config.getoption("tx", None) or ()) > 1 and not config.getoption("collectonly"):
            compile_new(config)
        config.pluginmanager.register(Course(config), "fairlead-course")


class Budget:
    """The time in which files of tests are begun, from the first one on."""

    def __init__(self, minutes: float | None) -> None:
        self._seconds = float("inf") if minutes is None else 60 * minutes
        self._end: float | None = None

    def is_used_up(self) -> bool:
        if self._end is None:
            self._end = time.monotonic() + self._seconds
        return time.monotonic() > self._end


class Course:
    """Which tests have begun and not ended, how long each file took, and which processes have outlived them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run = ""
        self._survivors: list[Survivor] = []
        self._begun: dict[str, float] = {}
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += getattr(report, "duration", 0.0)
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when not in ("setup", "call", "teardown"):  # its worker is dead
            self._begun.pop(report.nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._run = node.workerinput["testrunuid"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """With workers alone, whose environment says of which run they and all their children are.

        A test that has passed and left something has failed, also for who runs again what did. What a test has left
        that failed is no more than a part of its failure.
        """
        if self._run:
            self._survivors = end_survivors(f"PYTEST_XDIST_TESTRUNUID={self._run}", left_behind.PATIENCE_S)
        left_by = {each.test.rpartition(" (")[0] for each in self._survivors} - self._failed
        if left_by and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if (cache := self._config.cache) is not None:
                failed = cache.get("cache/lastfailed", {}) | dict.fromkeys(left_by - {""}, True)
                cache.set("cache/lastfailed", failed)
        unmount_below(self._config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined] # as xdist does

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self._begun:
            terminalreporter.section("had not ended")
            for test, begun in self._begun.items():
                terminalreporter.write_line(f"{test}  for {time.monotonic() - begun:.0f} s")
        scheduler = self._config.stash.get(SCHEDULER, None)
        if scheduler is not None and scheduler.left:
            terminalreporter.section("not begun within the budget", yellow=True)
            for file, number in Counter(map(file_of, scheduler.left)).items():
                terminalreporter.write_line(f"{number} of {file}")
        if self._survivors:
            terminalreporter.section("left behind, and killed now", red=True)
            for each in self._survivors:
                terminalreporter.write_line(f"ERROR {each}")
        if os.environ.get("FAIRLEAD_WRITE_SECONDS") == "1" and exitstatus in (0, 1):
            records, name = _recorded(), _record_of(self._config)
            taken = {file: round(seconds, 1) for file, seconds in (records[name] | self._seconds).items()}
            records[name] = {
                file: s for file, s in sorted(taken.items()) if s >= SHORT_S and (SECONDS.parents[1] / file).exists()
            }
            SECONDS.write_text(json.dumps(records, indent=2) + "\n")


def _recorded() -> dict[str, dict[str, float]]:
    recorded: dict[str, dict[str, float]] = json.loads(SECONDS.read_text())
    return recorded


def _record_of(config: pytest.Config) -> str:
    expression = config.getoption("markexpr")
    return "long" if expression == "long" else "slow" if expression.startswith("slow") else "default"
