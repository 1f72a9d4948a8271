"""A command whose exit code is not that of its program is told with the line to write, by `plan` and by `run`."""

import pytest

from fairlead.control.exit_codes import hidden_exit_code


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python t.py 2>&1 | tee log", "tee"),
        ("python t.py |& tee log", "tee"),
        ("cd x && python t.py | ts | tee log", "ts"),
        ("bash -c 'set -o pipefail'; python t.py | tee log", "tee"),
        ("python t.py; echo finished", "echo"),
        ("export A=1\npython t.py\n# done\ntrue\n", "true"),
    ],
)
def test_what_hides_it_is_named(command: str, named: str) -> None:
    sentence = hidden_exit_code(command)
    assert sentence is not None
    assert f"`{named}`; begin it with `set -eo pipefail`" in sentence


@pytest.mark.parametrize(
    "command",
    [
        "python t.py",
        "set -o pipefail; python t.py | tee log",
        "set -eo pipefail\npython t.py | tee log",
        "set -euxo pipefail; python t.py | tee log; echo finished",
        "set -e\npython t.py\necho finished",
        "python t.py || true",
        "(python a.py || python b.py) && python c.py",
        "python -c 'a | b'",
        'python -c "a | b; \\" | c"',
        "python t.py # | tee",
        "python t.py >| log",
        "export A=1\npython t.py",
        "echo a; sleep 1; echo b",
        "echo a | cat",
        "cat list | xargs -n1 python t.py",
        "",
    ],
)
def test_what_hides_nothing_is_told_nothing(command: str) -> None:
    assert hidden_exit_code(command) is None
