"""Arguments of `fairlead run` that look like something else: directories, capitals, empty variables of the shell."""

from pathlib import Path

import pytest

from tests.cli.conftest import Call


def test_a_directory_is_no_command_and_its_spec_files_are_named(desk: Path, call: Call) -> None:
    assert "is a directory, no command, without a spec file in it" in call("run", str(desk)).err
    (desk / "train.yaml").write_text("run: 'true'\n")
    for directory in (".", str(desk)):
        answer = call("run", directory)
        assert answer.code == 2
        assert f"{directory} is a directory, no command; its spec files: train.yaml." in answer.err


def test_a_spec_file_may_end_in_capitals(desk: Path, call: Call) -> None:
    (desk / "TRAIN.YML").write_text("run: echo hi\n")
    assert "train: it would start at once" in call("plan", "TRAIN.YML").out


@pytest.mark.parametrize("setting", ["max_duration=", "nodes= ", "resources.memory="])
def test_a_setting_without_a_value_is_refused(desk: Path, call: Call, setting: str) -> None:
    (desk / "t.yaml").write_text("run: 'true'\nmax_duration: 1h\n")
    answer = call("plan", "--set", setting, "t.yaml")
    assert answer.code == 2
    assert "nothing is given, as by an empty variable of the shell" in answer.err


def test_two_options_for_the_name_are_refused(desk: Path, call: Call) -> None:
    (desk / "t.yaml").write_text("run: 'true'\n")
    answer = call("run", "--set", "name=a", "--name", "b", "t.yaml")
    assert (answer.code, "--set name and --name say the same key" in answer.err) == (2, True)
