"""Arrival orders of the openb lists."""

from benchmarks.openb import Workload
from tests.policy.fleets import shape


def test_drawn_orders_have_every_pod_once_first_and_ask_for_as_much_as_published_ones() -> None:
    shapes = tuple(shape(gpus=1, milli=100 * i) for i in range(1, 6))
    workload = Workload(name="small", shapes=shapes, orders={42: (0, 1, 2, 3, 4, 4)})
    assert list(workload.arrivals(42)) == [shapes[i] for i in (0, 1, 2, 3, 4, 4)]
    drawn = list(workload.arrivals(7))
    assert set(drawn[:5]) == set(shapes)
    assert drawn == list(workload.arrivals(7))
    assert 1500 <= sum(one.total_gpu_milli for one in drawn) <= 2000
