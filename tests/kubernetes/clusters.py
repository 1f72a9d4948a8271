"""Clusters of their own, for tests that cannot share one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.kubernetes.testcluster.control_plane import ControlPlane

Made = TypeVar("Made", bound=ControlPlane)


@contextmanager
def started(make: Callable[[], Made], request: pytest.FixtureRequest) -> Iterator[Made]:
    """A cluster that runs. Logs stay when a test failed."""
    made = make()
    made.start()
    try:
        yield made
    finally:
        made.stop(keep_logs=request.session.testsfailed > 0)
