"""The files of a version of a model, for what is not Fairlead."""

from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.mark.parametrize("is_directory", [False, True])
def test_the_content_of_a_version_is_copied_to_a_new_place_only(call: Call, desk: Path, is_directory: bool) -> None:
    source = desk / "made"
    if is_directory:
        source.mkdir()
        (source / "weights").write_text("1")
    else:
        source.write_text("1")
    assert call("model", "push", "net", "./made").code == 0
    assert call("model", "get", "net@latest", "out").code == 0
    assert (desk / "out" / "weights" if is_directory else desk / "out").read_text() == "1"
    assert "out is there already" in call("model", "get", "net@1", "out").err
    assert call("model", "get", "net@7", "other").code == 5
    assert call("model", "get", "net", "other").code == 5
