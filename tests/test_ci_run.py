"""The script that judges a change: the three commands of tests are run, and a failure is told and counted."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
BOOTSTRAP = """
import json, pathlib, sys
argv = sys.argv[1:]
with open("calls", "a") as calls:
    print(*argv, file=calls)
if argv[0] == "pytest":
    case = json.loads(pathlib.Path("case.json").read_text())
    name = "again" if "-n" in argv else "long" if "long" in argv else "slow" if "-m" in argv else "fast"
    code, failed = case.get(name, [0, []])
    cache = pathlib.Path(".pytest_cache/v/cache/lastfailed")
    cache.parent.mkdir(parents=True, exist_ok=True)
    if failed:
        cache.write_text(json.dumps(dict.fromkeys(failed, True)))
    sys.exit(code)
"""
FAST = "pytest"
SLOW = "pytest --budget 15 -m slow and not long and not rare and not frameworks and not browser and not gpu"
LONG = "pytest -m long --budget 6 -o timeout=1200"


def run(place: Path, *, path: str = "", **case: tuple[int, list[str]]) -> tuple[int, str, list[str]]:
    """The status of the script where tests end so, the last line it says, and the calls of pytest."""
    (place / ".ci").mkdir()
    shutil.copy(RUN, place / ".ci" / "run")
    (place / "bootstrap.py").write_text(BOOTSTRAP)
    (place / "case.json").write_text(json.dumps(case))
    environ = {"PATH": f"{path}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    ended = subprocess.run(
        ["bash", ".ci/run"], cwd=place, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    calls = [line for line in (place / "calls").read_text().splitlines() if line.startswith("pytest")]
    return ended.returncode, (ended.stdout + ended.stderr).splitlines()[-1], calls


def test_all_three_commands_are_run(tmp_path: Path) -> None:
    assert run(tmp_path) == (0, "All tests passed, none was run again.", [FAST, SLOW, LONG])


def test_what_fails_in_either_is_run_once_more_and_named(tmp_path: Path) -> None:
    status, told, calls = run(tmp_path, fast=(1, ["a.py::b[c d]"]), long=(1, ["e.py::f"]))
    assert status == 0
    assert told == "All tests passed, 2 of them only when run again, alone: the lines above."
    assert calls == [FAST, SLOW, LONG, "pytest -n 1 -m  -o timeout=1200 a.py::b[c d] e.py::f"]


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    status, _, calls = run(tmp_path, long=(1, ["e.py::f"]), again=(1, []))
    assert status == 1
    assert len(calls) == 4


def test_more_failures_than_chance_explains_are_not_tried_again(tmp_path: Path) -> None:
    many = [f"a.py::t{number}" for number in range(8)]
    status, told, calls = run(tmp_path, fast=(1, many), long=(1, many))
    assert (status, told, calls) == (1, "FAILED: 16 tests; more than 15 are not tried again.", [FAST, SLOW, LONG])


@pytest.mark.parametrize(
    ("name", "what"), [("fast", "the tests"), ("slow", "the slow tests"), ("long", "the long tests")]
)
def test_a_run_that_ends_otherwise_is_not_mended(tmp_path: Path, name: str, what: str) -> None:
    status, told, _ = run(tmp_path, path="", **{name: (7, ["a.py::b"])})
    assert (status, told) == (7, f"FAILED: {what} ended with 7, which no second run can mend.")


def test_a_failure_without_a_failed_test_is_not_mended(tmp_path: Path) -> None:
    status, told, _ = run(tmp_path, fast=(1, []))
    assert (status, told) == (1, "FAILED: the tests, without a failed test that could be run again.")


def test_the_limits_of_its_steps_end_it_in_time() -> None:
    script = RUN.read_text()
    (promised,) = map(int, re.findall(r"within (\d+) minutes", script))
    limits = {name: int(minutes) for name, minutes in re.findall(r"\b(BUILD|TESTS|SLOW|LONG|AGAIN|ALL)=(\d+)", script)}
    assert len(limits) == 6
    assert limits["ALL"] < promised, "the last step is killed a minute and a half after its limit"
    (begun,) = map(int, re.findall(r"\bBEGUN=(\d+)", script))
    assert limits["SLOW"] >= begun + 12, "a test of the last file that began has its ten minutes"
    least = limits["ALL"] - limits["BUILD"] - limits["TESTS"] - limits["SLOW"] - limits["AGAIN"]
    assert least >= limits["LONG"] + 8, "the last that began have time to end"


def test_the_long_tests_have_the_time_that_the_others_leave(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "timeout"
    fake.write_text('#!/bin/bash\necho "$@" >> limits\nwhile [[ $1 == -* ]]; do shift; done; shift; exec "$@"\n')
    fake.chmod(0o755)
    run(tmp_path, path=str(fake.parent))
    limits = [int(re.findall(r"(\d+)m ", line)[0]) for line in (tmp_path / "limits").read_text().splitlines()]
    assert limits == [4, 29, 27, 86 - 9]
