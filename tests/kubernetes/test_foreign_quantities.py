"""Quantities of objects that the API server does not check: any text is an amount that Kubernetes could hold."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.cluster.kubernetes.api.objects import MOST_DEVICES, amounts, quantity
from fairlead.cluster.kubernetes.informers.vertical_recommendations import read_recommendations
from fairlead.cluster.kubernetes.names import SIZES

EXTREME = ["1e999999", "-1e999999", "1e9999999", "1e-9999999", "NaN", "-sNaN", "Infinity", "1e999999Ei", "9" * 5000]


@given(st.text(st.sampled_from("0123456789.eE+-KMGTPimkunNaIfty"), max_size=30))
@example("1e999999")
@example("NaN")
@example("Infinity")
@example("1e9999999")
@example("1e-9999999")
def test_any_text_is_a_quantity_that_kubernetes_could_hold(text: str) -> None:
    number = quantity(text)
    assert number.is_finite()
    assert abs(number) < 2**63
    assert amounts({"cpu": text, "memory": text}).memory_bytes == int(number)


def test_a_quantity_keeps_its_exact_value() -> None:
    assert (quantity("1.5Gi"), quantity("250m"), quantity("1e3"), quantity("3n")) == (
        Decimal(3 * 2**29), Decimal("0.25"), Decimal(1000), Decimal("3e-9"),
    )  # fmt: skip


class Autoscalers:
    """A client of an API server that lists these objects."""

    def __init__(self, *statuses: Any) -> None:
        """Take the status of each object."""
        self.statuses = statuses

    def items(self, *_: Any) -> list[dict[str, Any]]:
        """List the objects."""
        about = {"namespace": "a", "labels": {SIZES: "train"}}
        return [{"metadata": {**about, "name": f"v{at}"}, "status": each} for at, each in enumerate(self.statuses)]


def of_memory(target: Any) -> dict[str, Any]:
    """Return the status of an autoscaler that recommends this much memory."""
    return {"recommendation": {"containerRecommendations": [{"target": {"memory": target}}]}}


MALFORMED = ["x", 3, [1], {"recommendation": "x"}, {"recommendation": {"containerRecommendations": 3}}]
MALFORMED += [{"recommendation": {"containerRecommendations": [3, {"target": "x"}]}}, of_memory([1]), of_memory({})]


@pytest.mark.parametrize("status", [*MALFORMED, *map(of_memory, EXTREME)], ids=lambda status: str(status)[:80])
def test_an_autoscaler_that_says_nonsense_hides_no_other(status: Any) -> None:
    client: Any = Autoscalers(status, of_memory("1Gi"))
    *_, last = read_recommendations(client, None)
    assert (last.by, last.memory_bytes) == ("VerticalPodAutoscaler v1", 2**30)


def test_a_pod_counts_with_no_more_devices_than_can_be_named() -> None:
    asked = amounts({"nvidia.com/gpu": str(2**63 - 1), "nvidia.com/mig-1g.5gb": "3"})
    assert asked.devices == (("nvidia.com/gpu", MOST_DEVICES), ("nvidia.com/mig-1g.5gb", 3))
