"""Debian packages that real nodes need: the command that runs the tests installs them, unless it is told not to.

Who sits at a terminal is asked, once for the whole run; elsewhere what is installed is printed.
"""

import os

import pytest
from _pytest.mark.expression import Expression

OPTION = "--no-system-packages"
MARKS = ("long", "slow", "kubernetes")
"""Of tests of real nodes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        OPTION,
        action="store_true",
        help="install no Debian packages for tests of real nodes; where one is missing, these are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts the workers; they and whatever they start inherit the answer."""
    if hasattr(config, "workerinput") or not (config.getoption(OPTION) or wants_long(config.getoption("markexpr"))):
        return
    from tests.kubernetes.testcluster.real_nodes import DECLINED

    if config.getoption(OPTION) or not _agreed(config):
        os.environ[DECLINED] = OPTION


def wants_long(expression: str) -> bool:
    """Whether an expression of ``-m`` chooses tests of real nodes."""
    return not expression or Expression.compile(expression).evaluate(lambda name, /, **_: name in MARKS)


def _agreed(config: pytest.Config) -> bool:
    """Whether missing packages may be installed: yes where none is missing or nobody can be asked."""
    from tests.kubernetes.testcluster.real_nodes import DEBIAN_PACKAGES, may_install

    if not may_install() or not os.isatty(0):
        return True
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        answer = input(f"Tests of real nodes need {' '.join(DEBIAN_PACKAGES)}. Install them with apt-get? [Y/n] ")
    return answer.strip().lower() in ("", "y", "yes")
