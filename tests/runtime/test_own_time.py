"""The time that a rank computes by itself, up to the gradient that comes last."""

from fairlead.runtime.own_time import OwnTime
from tests.late import torch_or_skip

torch = torch_or_skip()


class Clocks:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.wall_s = 0.0


def test_own_time_ends_with_the_last_gradient_and_leaves_waits_out() -> None:
    clocks = Clocks()
    own = OwnTime(cpu=lambda: clocks.cpu_s, wall=lambda: clocks.wall_s)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)  # whose gradient never comes
    own.watch([model])
    assert own.report() is None
    for step in range(1, 4):
        clocks.cpu_s += 0.030  # forward and backward
        model(torch.ones(1, 2)).sum().backward()
        clocks.cpu_s += 0.010  # the optimizer
        clocks.wall_s += 0.100
        own.step(step)
    assert own.report() == {"step": 3, "us": [30_000, 30_000], "gpu": False, "step_s": 0.1}


def test_a_step_without_a_backward_is_not_measured() -> None:
    own = OwnTime()
    own.watch([torch.nn.Linear(1, 1)])
    own.step(1)
    own.step(2)
    assert own.report() is None
