"""Clusters of their own, for tests that cannot share one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Unavailable

Made = TypeVar("Made", bound=ControlPlane)


@contextmanager
def started(make: Callable[[], Made], request: pytest.FixtureRequest) -> Iterator[Made]:
    """A cluster that runs; the test is skipped where the machine cannot have it. Logs stay when a test failed."""
    try:
        made = make()
        made.start()
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.stop(keep_logs=request.session.testsfailed > 0)
