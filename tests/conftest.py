"""What holds for all tests."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from fairlead.policy.kinds.internal_failures import InternalFailures
from tests.kubernetes.testcluster.errors import Unavailable
from tests.late import IMPORTED

# Thousands of interpreters start below, and compiling is half of a start: what is compiled is kept for all of them, in
# one place of its own, so that no directory that a test looks at has it.
BYTECODE = Path(sys.prefix) / "bytecode"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(BYTECODE)
sys.dont_write_bytecode = False

pytest_plugins = ["tests.s3", "tests.system_packages", "tests.whole_run"]

# How long an example takes says how busy the machine is.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")

# A shell that starts the tests in the background has them ignore these, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def failures_are_raised(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what a loop would tell of a failure of Fairlead itself, unless the test is about that."""
    if "failures_are_told" in request.fixturenames:
        return

    def note(_failures: InternalFailures, _uid: str, error: Exception) -> None:
        raise error

    monkeypatch.setattr(InternalFailures, "note", note)


@pytest.fixture(autouse=True)
def logging_starts_anew() -> None:
    """Let clusters log what they log by default: a command that ran within the tests may have set another level."""
    logging.getLogger("fairlead.cluster").setLevel(logging.NOTSET)


@pytest.fixture
def failures_are_told() -> None:
    """Let decisions go on after failures, as in a live loop."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what is long or rare, so that ``-m "not slow"`` leaves it out."""
    for item in items:
        if item.get_closest_marker("long") is not None or item.get_closest_marker("rare") is not None:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skip a test whose cluster, or a part of it, this machine cannot have."""
    return (yield from _or_skipped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that asks for such a part itself."""
    return (yield from _or_skipped())


def _or_skipped() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for the tests without the garbage collector: hardly anything of what is made then goes, and all is kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the garbage collector pass over what is there to the end: seven thousand tests, in each full collection."""
    gc.freeze()
    session.config.stash[IMPORTED] = frozenset(sys.modules)
