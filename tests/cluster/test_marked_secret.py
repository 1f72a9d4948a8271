"""Greps everything that Fairlead writes in runs with a marked secret: no file but the store itself has it."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli.conftest import Call, call, desk, process  # noqa: F401 (fixtures)

KEY, FILE = "m4rk3d/+key=1", "m4rk3d file\n"
FORMS = {
    form
    for value in (KEY, FILE)
    for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), base64.b64encode(value.encode()).decode())
}
PROGRAM = """
import os, sys
import fairlead
assert len(os.environ["API_KEY"]) == 13
assert len(open(os.environ["KEY_FILE"]).read()) == 12
assert os.path.exists(os.environ["CERTS"] + "/key.pem")
with fairlead.run() as run:
    run.resume(seen={})
    for step in range(3):
        run.progress(step, loss=1.0 / (step + 1))
        run.checkpoint(step)
print("the program has", len(os.environ["API_KEY"]), "characters")
sys.exit(int(os.environ.get("ENDS_WITH", "0")))
"""
SPEC = """
name: {name}
run: python train.py
setup: test -n "$API_KEY"
secrets: [api, KEY_FILE=certs/key.pem, CERTS=certs]
env: {{ENDS_WITH: "{ends}"}}
checkpoint: {{every: 1 steps}}
"""
PIPELINE = """
kind: Pipeline
name: steps
secrets: [api]
steps:
  a: test -n "$API_KEY"
  b: {needs: [a], training: {run: "python train.py", secrets: [KEY_FILE=certs/key.pem, CERTS=certs]}}
"""
SWEEP = """
kind: Sweep
name: tries
objective: loss
parameters: {x: 1 | 2}
trials: 2
trial: {run: "python train.py {{x}}", secrets: [api, KEY_FILE=certs/key.pem, CERTS=certs]}
"""


def leaks(root: Path, store: Path) -> Iterator[str]:
    """Yield the files below a directory, but for those of the store, that have the secret in any form."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_relative_to(store):
            content = path.read_bytes()
            yield from (f"{path}: {form!r}" for form in FORMS if form.encode() in content)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a key that is not in the working directory, of which a copy is kept as code."""
    path = tmp_path_factory.mktemp("outside") / "key.pem"
    path.write_text(FILE)
    return path


@pytest.mark.slow
def test_nothing_that_runs_leave_has_the_secret(call: Call, process: Call, desk: Path, outside: Path) -> None:  # noqa: F811
    assert process("secrets", "set", "api", "--from-env", "API_KEY", env={"API_KEY": KEY}).code == 0
    assert call("secrets", "set", "certs", "--from-file", str(outside)).code == 0
    Path("train.py").write_text(PROGRAM)
    subprocess.run(["git", "init", "-q"], check=True)
    Path("good.yaml").write_text(SPEC.format(name="good", ends=0))
    Path("bad.yaml").write_text(SPEC.format(name="bad", ends=3))
    Path("steps.yaml").write_text(PIPELINE)
    Path("tries.yaml").write_text(SWEEP)
    said = [process("plan", "good.yaml")]
    for name, code in (("good", 0), ("bad", 1), ("steps", 0), ("tries", 0)):
        said.append(process("run", f"{name}.yaml"))
        assert said[-1].code == code, said[-1].err + said[-1].out
    for words in (
        ("show", "good"), ("show", "good", "--export", "exported"), ("status", "good", "--json"), ("status", "--json"),
        ("events", "bad", "--json"), ("logs", "bad"), ("compare", "good", "bad"), ("secrets", "list", "--json"),
        ("render", "good.yaml"), ("plan", "bad.yaml", "--json"),
    ):  # fmt: skip
        said.append(process(*words))
        assert said[-1].code in (0, 1, 2, 6), (words, said[-1].err)
    assert [form for one in said for form in FORMS if form in one.out + one.err] == []
    home = desk / "home"
    assert (home / "secrets" / "api" / "API_KEY").read_text() == KEY
    assert list(leaks(desk, home / "secrets")) == []


@pytest.mark.slow
def test_a_secret_that_goes_while_a_run_waits_ends_it_with_a_sentence(call: Call, process: Call, desk: Path) -> None:  # noqa: F811
    from fairlead.cluster.local.cluster import LocalCluster
    from fairlead.specs.secret_reference import parse_secret
    from fairlead.specs.training import Training

    assert process("secrets", "set", "api", "--from-env", "API_KEY", env={"API_KEY": KEY}).code == 0
    cluster = LocalCluster.open(desk / "home")
    spec = Training(name="waits", run="true", workdir="/", secrets=(parse_secret("api"),))
    cluster.submit(spec)
    cluster.close()
    assert call("secrets", "rm", "api").code == 0
    ended = process("attach", "waits")
    assert ended.code == 1
    assert "secrets: there is no secret `api` on this machine" in ended.err + ended.out
