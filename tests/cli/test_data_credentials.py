"""Greps everything that Fairlead writes when runs read a private bucket with the keys of a secret."""

import subprocess
from pathlib import Path

import pytest

from fairlead.control.data import upload_directory
from tests.cli.conftest import Call
from tests.cli.test_datasets import files
from tests.data_situations import forms, leaks
from tests.s3 import KEY, S3, SECRET, s3, s3_binary

__all__ = ["s3", "s3_binary"]

VALUES = (KEY, SECRET, "a-wrong-secret")
PROGRAM = """
import fairlead

with fairlead.run() as run:
    data = run.data("train")
    step = run.resume(seen={})
    for batch in data.batches(2, epochs=2):
        step += 1
        run.progress(step, loss=1.0)
        run.checkpoint(step)
    print("read version", data.version, "of", data.name)
"""
DATASET = """
kind: Dataset
name: rows
from: s3://models/rows
credentials: reader
"""
SWEEP = """
kind: Sweep
name: tries
objective: loss
parameters: {x: 1 | 2}
trials: 2
trial: {run: "python train.py {{x}}", data: {train: rows}}
"""
PIPELINE = """
kind: Pipeline
name: steps
steps:
  look: {run: echo 1, inputs: [rows]}
  train: {needs: [look], training: {run: python train.py, data: {train: rows}}}
"""


@pytest.mark.slow
def test_nothing_that_is_written_has_the_keys_of_the_store(
    call: Call, process: Call, desk: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_directory(files(Path("one")), "s3://models/rows")
    subprocess.run(["rm", "-r", "one"], check=True)
    given = dict(s3.environ)
    for name in given:
        monkeypatch.delenv(name)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
    options = [part for name in names for part in ("--from-env", name)]
    assert process("secrets", "set", "reader", *options, env=given).code == 0
    wrong = {**given, "AWS_SECRET_ACCESS_KEY": "a-wrong-secret"}
    assert process("secrets", "set", "stranger", *options, env=wrong).code == 0
    Path("train.py").write_text(PROGRAM)
    subprocess.run(["git", "init", "-q"], check=True)
    Path("rows.yaml").write_text(DATASET)
    Path("good.yaml").write_text("run: python train.py\ndata: {train: rows}\ncheckpoint: {every: 1 steps}\n")
    Path("bad.yaml").write_text("run: python train.py\ndata: {train: {from: rows, credentials: stranger}}\n")
    Path("tries.yaml").write_text(SWEEP)
    Path("steps.yaml").write_text(PIPELINE)
    said = []
    for words, code in (
        (("apply", "rows.yaml"), 0), (("plan", "good.yaml"), 0), (("run", "good.yaml"), 0), (("run", "tries.yaml"), 0),
        (("run", "steps.yaml"), 0), (("run", "bad.yaml"), 2), (("data", "ls", "rows"), 0), (("data", "ls"), 0),
        (("data", "warm", "rows"), 0), (("data", "pull", "rows", "back"), 0), (("data", "versions", "rows"), 0),
        (("data", "versions", "--json"), 0), (("show", "good"), 0), (("show", "good", "--export", "exported"), 0),
        (("status", "--json"), 0), (("events", "good", "--json"), 0), (("logs", "good"), 0),
        (("render", "good.yaml"), 0), (("plan", "good.yaml", "--json"), 0),
    ):  # fmt: skip
        said.append(process(*words))
        assert said[-1].code == code, (words, said[-1].err, said[-1].out)
    assert "of rows" in next(answer.out for answer in said if "read version" in answer.out)
    assert "does not know these credentials" in said[5].err
    assert [form for answer in said for form in forms(VALUES) if form in answer.out + answer.err] == []
    store = desk / "home" / "secrets"
    assert leaks(desk, VALUES, besides=(store, s3.directory)) == []
    assert (store / "reader" / "AWS_SECRET_ACCESS_KEY").read_text() == SECRET
