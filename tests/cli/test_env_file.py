"""Variables of a file: for the program, and in no spec."""

from pathlib import Path

import click
import pytest

from fairlead.cli.env_file import read_env_files
from tests.cli.conftest import Call


def test_a_file_of_variables_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a.env", tmp_path / "b.env"
    first.write_text("# keys\n\nA=1\nexport B = 2\n".replace("B = 2", "B=2 3") + "C='x y'\nD=\"\"\nE=a=b$A\n")
    second.write_text("A=2\r\n")
    assert read_env_files([first, second]) == {"A": "2", "B": "2 3", "C": "x y", "D": "", "E": "a=b$A"}


@pytest.mark.parametrize("content", [b"s3cr3t", b"1A=s3cr3t", b"A =s3cr3t", b"\xff=s3cr3t", b"A=s3cr3t\0"])
def test_a_refusal_names_the_line_and_no_value(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.env").write_bytes(b"OK=1\n" + content)
    with pytest.raises(click.UsageError) as refusal:
        read_env_files([tmp_path / "a.env"])
    assert "s3cr3t" not in refusal.value.message
    assert "a.env" in refusal.value.message


def test_a_program_gets_variables_of_a_file_which_no_command_shows(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_CODE", "")  # restored after the test, as the command sets it in this process
    Path("secrets.env").write_text("DB_CODE=s3cr3t\n")
    assert call("run", "--name", "t", "--env-file", "secrets.env", "--", "sh", "-c", "test ${#DB_CODE} = 6").code == 0
    for words in (("show", "t"), ("status", "t", "--json"), ("events", "t")):
        assert "s3cr3t" not in call(*words).out
    refused = call("run", "--env-file", "secrets.env", "--cluster", "kubernetes", "--", "true")
    assert (refused.code, "Secret" in refused.err) == (2, True)
