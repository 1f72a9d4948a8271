"""Which Event of a pod counts, by the answers of an API server."""

from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts
from fairlead.cluster.kubernetes.operator.pods.pod_events import newest

POD = PodObject(
    key="team/a-0-0", version=1, uid="u", phase="Pending", node="n", requests=ResourceAmounts(), created_at=0.0
)


class Server:
    """Has these Events of the pod."""

    def __init__(self, *events: dict[str, Any], refuses: int | None = None) -> None:
        self.events = events
        self.refuses = refuses
        self.asked: list[tuple[str, dict[str, str]]] = []

    def items(self, path: str, query: dict[str, str]) -> tuple[dict[str, Any], ...]:
        self.asked.append((path, query))
        if self.refuses is not None:
            raise ApiError("GET events", self.refuses, "", "no")
        return self.events


def an_event(reason: str, version: int, **changes: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "reason": reason, **changes}


def ask(server: Any, **changes: Any) -> str | None:
    found = newest(server, POD, **changes)
    return None if found is None else str(found["reason"])


def test_the_event_that_was_told_last_counts_also_when_it_was_told_first_long_ago() -> None:
    server = Server(an_event("FailedMount", 100), an_event("Scheduled", 99))
    assert ask(server) == "FailedMount"
    assert server.asked == [("/api/v1/namespaces/team/events", {"fieldSelector": "involvedObject.uid=u"})]
    assert ask(Server()) is None


def test_what_others_say_is_left_out_where_it_matters_who_says_it() -> None:
    by_scheduler = an_event("FailedScheduling", 9, source={"component": "default-scheduler"})
    by_karpenter = an_event("Nominated", 8, source={}, reportingComponent="karpenter")
    server = Server(by_karpenter, by_scheduler)
    assert (ask(server), ask(server, by=("karpenter",)), ask(server, by=("other",))) == (
        "FailedScheduling", "Nominated", None,
    )  # fmt: skip


@pytest.mark.parametrize("status", [403, 404])
def test_of_a_namespace_on_its_way_out_nothing_is_known(status: int) -> None:
    assert ask(Server(refuses=status)) is None


def test_other_troubles_are_told() -> None:
    with pytest.raises(ApiError):
        ask(Server(refuses=500))
