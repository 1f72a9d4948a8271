"""A failure in the work on one object, and one that concerns all."""

import logging

import pytest

from fairlead.cluster.isolation import Isolation
from fairlead.cluster.kubernetes.api.client import ApiError, Unreachable
from fairlead.errors import ClusterError


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422, 500, 502, 503, 504])
def test_an_answer_about_one_object_ends_the_work_on_it_alone_and_is_logged_once(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    isolation = Isolation()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            with isolation.of("view of research"):
                raise ApiError("PATCH configmaps", status, "", f"dial tcp 10.0.0.1:{number}")
    assert len(caplog.records) == 1
    assert isolation.refused == ("view of research",)
    assert (isolation.failing, isolation.num_failures) == ((), 0)
    with isolation.of("view of research"):
        pass
    assert not isolation.refused


@pytest.mark.parametrize(
    "error",
    [Unreachable("no answer"), ApiError("GET", 401, "", ""), ApiError("GET", 429, "", ""), ClusterError(""), OSError()],
)
def test_trouble_of_the_cluster_itself_is_raised(error: Exception) -> None:
    isolation = Isolation()
    with pytest.raises(type(error)), isolation.of("view of research"):
        raise error
