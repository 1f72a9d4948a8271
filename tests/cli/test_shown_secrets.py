"""No command shows the value of a variable that looks like credentials."""

from pathlib import Path

from tests.cli.conftest import Call

SECRET = "s3cr3t"


def test_no_command_shows_a_secret(call: Call, desk: Path) -> None:
    for name, secret, rate in (("t", SECRET, "0.1"), ("u", f"{SECRET}-2", "0.2")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nrun: 'true'\n")
        assert call("run", f"{name}.yaml", "--env", f"HF_TOKEN={secret}", "--env", f"LR={rate}").code == 0
    planned = ("plan", "t.yaml", "--env", f"HF_TOKEN={SECRET}-3", "--env", "LR=0.3")
    for words in (
        planned, (*planned, "--json"), (*planned, "--diff"), ("show", "t"),
        ("show", "t", "--json"), ("show", "t", "--diff", "u"), ("show", "t", "--diff", "u", "--json"), ("status", "t"),
        ("status", "t", "--json"), ("compare", "t", "u"), ("compare", "t", "u", "--json"), ("events", "t"),
    ):  # fmt: skip
        answer = call(*words)
        assert answer.out, words
        assert SECRET not in answer.out + answer.err, words
    assert "0.3" not in call(*planned, "--diff").out
    assert "env.LR" in call(*planned, "--diff").out
