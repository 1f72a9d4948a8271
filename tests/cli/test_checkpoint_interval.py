"""What `plan` and `status` say of `checkpoint.every: auto`."""

from fairlead.cli.commands.status import _checkpoints
from fairlead.policy.kinds.defaults import INTERVAL_LATER, complete
from fairlead.specs.training import Checkpoint
from fairlead.state.snapshot import Progress
from tests.builders import training

SPEC = training("net", checkpoint=Checkpoint(every_auto=True))


def test_plan_says_that_the_interval_will_be_chosen() -> None:
    assert INTERVAL_LATER in complete(SPEC, ()).notes
    assert INTERVAL_LATER not in complete(training("net"), ()).notes


def test_status_says_the_interval_and_why() -> None:
    assert _checkpoints(SPEC, "here", None) == "at an interval that is chosen once a save was made, 3 kept, in here"
    chose = Progress(checkpoint_interval_s=600.0, checkpoint_interval_why="a reason")
    assert _checkpoints(SPEC, "here", chose) == "every 10m (a reason), 3 kept, in here"
