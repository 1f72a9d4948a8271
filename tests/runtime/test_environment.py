"""What a rank finds around it."""

from pathlib import Path

import pytest

from fairlead.runtime.environment import Environment, read_environment
from fairlead.runtime.errors import Misuse
from tests.runtime.gang import contract


def test_plain_python_is_a_run_of_one_rank_with_no_place() -> None:
    assert read_environment({}) == Environment(run_dir=Path("."))


def test_contract_is_read_whole() -> None:
    environ = {
        **contract(rank=1, world_size=2, pod_dir=Path("/pod"), to="s3://b/run", attempt=3, port=1, agree_port=2),
        "FAIRLEAD_CHECKPOINT_EVERY_S": "2.5",
        "FAIRLEAD_CHECKPOINT_KEEP": "5",
        "FAIRLEAD_RUN_DIR": "/run",
        "GROUP_RANK": "1",
        "FAIRLEAD_ELASTIC": "1",
    }
    assert read_environment(environ, checkpoint_to="elsewhere", every_steps=7, keep=9) == Environment(
        rank=1,
        local_rank=1,
        world_size=2,
        node=1,
        run="test",
        run_uid="uid",
        attempt=3,
        pod_dir=Path("/pod"),
        run_dir=Path("/run"),
        checkpoint_to="s3://b/run",
        every_s=2.5,
        keep=5,
        agree_port=2,
        key_file="/pod/key",
        grace_s=5.0,
        elastic=True,
    )


def test_program_decides_what_the_environment_leaves_open() -> None:
    environment = read_environment({}, checkpoint_to="here", every_steps=10, keep=1)
    assert (environment.checkpoint_to, environment.every_steps, environment.keep) == ("here", 10, 1)


def test_grace_of_zero_is_kept() -> None:
    assert read_environment({"FAIRLEAD_GRACE_S": "0"}).grace_s == 0.0


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"RANK": "one"}, "RANK is 'one'; it must be a whole number"),
        ({"FAIRLEAD_GRACE_S": "soon"}, "FAIRLEAD_GRACE_S is 'soon'; it must be a number of seconds"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
        ({"FAIRLEAD_CHECKPOINT_EVERY_S": "1", "FAIRLEAD_CHECKPOINT_EVERY_STEPS": "1"}, "give one of the two"),
    ],
)
def test_nonsense_is_named(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        read_environment(environ)


def test_keeping_no_checkpoint_is_refused() -> None:
    with pytest.raises(Misuse, match="keep at least 1"):
        read_environment({}, keep=0)
