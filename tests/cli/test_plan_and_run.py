"""Whatever `plan` says would happen to a file is what `run` does with it: the same verdict, names and sentences."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.policy import start_outlook
from fairlead.policy.queue import run_forecast
from tests.cli.conftest import Call

CPUS = "resources: {cpu: 4096}\n"
SPECS = {
    "small": "run: python -c pass\n",
    "nothing open": "run: python -c pass\nranks_per_node: 2\nresources: {cpu: 500m, memory: 64Mi}\nmax_duration: 1h\n",
    "a finished name": "name: done\nrun: python -c pass\n",
    "too large": f"run: python -c pass\n{CPUS}",
    "too many nodes": "run: python -c pass\nnodes: 64\nresources: {cpu: 1000}\n",
    "an image": "run: python -c pass\nimage: registry/train:1\n",
    "shared memory": "run: python -c pass\nresources: {shm: 1Gi}\n",
    "a missing directory": "run: python -c pass\nworkdir: nowhere\n",
    "a mistake": "run: python -c pass\nranks: 2\n",
    "a taken name": "name: holder\nrun: python -c pass\n",
    "two, one of them too large": f"name: a\nrun: python -c pass\n---\nname: b\nrun: python -c pass\n{CPUS}",
    "twice the same": "name: a\nrun: python -c pass\n---\nname: a\nrun: python -c pass\n",
}


def first_decision(call: Call, name: str) -> dict[str, Any]:
    """What the loop first decided on a run."""
    while True:
        told = [json.loads(line) for line in call("events", name, "--json").out.splitlines()]
        decided = [event for event in told if event["event"] != "Submitted"]
        if decided:
            first: dict[str, Any] = decided[0]
            return first


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_run_does_what_plan_says(call: Call, spec: str) -> None:
    if spec.startswith("name: done"):
        assert call("run", "--name", "done", "--", "true").code == 0
    if spec.startswith("name: holder"):
        call("run", "-d", "--name", "holder", "--", "sleep", "60")
    Path("spec.yaml").write_text(spec if spec.startswith("name") else f"name: t\n{spec}")
    planned = call("plan", "spec.yaml", "--json")
    ran = call("run", "-d", "spec.yaml", "--json")
    if planned.code != 0:
        assert (ran.code, ran.err) == (planned.code, planned.err) if "holder" not in spec else ran.code == planned.code
    else:
        said = [json.loads(line) for line in planned.out.splitlines()]
        made = json.loads(ran.out)
        assert [run["name"] for run in made] == [each["name"] for each in said]
        for each in said:
            decided = first_decision(call, each["name"])
            assert (decided["event"], decided["reason"]["message"]) == (each["phase"], each["reason"]["message"])
            assert json.loads(call("status", each["name"], "--json").out)["spec"] == each["spec"]
    call("delete", "--all", "--yes")


def test_a_run_that_waits_for_another_is_told_so_by_both(call: Call) -> None:
    call("run", "-d", "--name", "holder", "--", "sleep", "60")
    holder = first_decision(call, "holder")
    assert holder["event"] == "Starting"
    whole = len(os.sched_getaffinity(0))
    Path("late.yaml").write_text(f"name: late\nrun: python -c pass\nresources: {{cpu: {whole}}}\n")
    (planned,) = (json.loads(line) for line in call("plan", "late.yaml", "--json").out.splitlines())
    assert planned["phase"] == "Pending"
    assert planned["reason"]["message"].endswith("held by holder; start unknown: holder has no `max_duration`")
    call("run", "-d", "late.yaml")
    decided = first_decision(call, "late")
    assert (decided["event"], decided["reason"]["message"]) == ("Pending", planned["reason"]["message"])
    call("delete", "--all", "--yes")


def test_a_sweep_under_way_is_not_submitted_beside_itself_and_plan_says_so(call: Call) -> None:
    Path("s.yaml").write_text("kind: Sweep\nparameters: {x: 1 | 2}\ntrial: {run: 'sleep 60; echo {{x}}'}\n")
    assert "chosen: parameters.x: 2 values: 1, 2\n" in call("plan", "s.yaml").out
    call("run", "-d", "s.yaml")
    planned = call("plan", "s.yaml")
    assert planned.code == 0
    assert "`fairlead attach s` follows it; `fairlead run` would refuse a second one" in planned.out
    assert call("run", "-d", "s.yaml").code == 6
    call("delete", "--all", "--yes")


def test_a_loop_submits_all_its_runs_under_names_of_their_own(call: Call) -> None:
    Path("train.py").write_text("")
    for number in range(3):
        assert call("run", "-d", "--", "python", "train.py").code == 0
        quiet = call("run", "-d", "-q", "--name", "q", "--", "sleep", "60")
        assert (quiet.code, quiet.out, quiet.err) == (0, f"{('q', 'q-2', 'q-3')[number]}\n", "")
    names = [run["name"] for run in json.loads(call("status", "--all", "--json").out)]
    assert sorted(names) == ["q", "q-2", "q-3", "train", "train-2", "train-3"]
    call("delete", "--all", "--yes")


def test_names_alone_of_runs_that_are_followed_are_refused(call: Call) -> None:
    for options in (["-q"], ["-q", "-d", "--json"]):
        refused = call("run", *options, "--", "true")
        assert (refused.code, "give it with -d, and without --json" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["sleep", "0"], "sleep"),
        (["python", "-c", "import time; time.time()"], "python"),
        (["python", "-u", "Train_It.py", "--lr", "1"], "train-it"),
        (["python", "-m", "json.tool", "--help"], "tool"),
        (["bash", "-c", "true"], "bash"),
    ],
)
def test_a_command_is_named_after_its_script_or_module_or_program(call: Call, command: list[str], name: str) -> None:
    Path("Train_It.py").write_text("")
    assert f"Submitted {name}." in call("run", "-d", "--", *command).err


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192,
}  # fmt: skip
CHAT = """
kind: Serving
name: chat
model: llama
run: vllm serve llama --port $PORT
probe: /health
resources: {gpu: "RTX4090:1"}
"""


def write_chat(spec: str = CHAT) -> None:
    Path("llama").mkdir()
    Path("llama/config.json").write_text(json.dumps(CONFIG))
    Path("chat.yaml").write_text(spec)


def test_plan_tells_how_fast_a_text_server_would_answer_even_where_there_is_no_such_gpu(call: Call) -> None:
    write_chat()
    planned = call("plan", "chat.yaml", "--tokens", "256,64")
    assert planned.code == 4  # it fits nowhere here
    assert "a replica on 1 x RTX4090 with continuous batching" in planned.out
    assert "requests of 256 tokens, answers of 64:\nREQUESTS/S  TOKENS/S  FIRST TOKEN" in planned.out
    assert "by the data sheet, before anything was measured: within about 30 %" in planned.out


def test_a_model_that_does_not_fit_its_gpu_is_told(call: Call) -> None:
    write_chat(CHAT.replace("RTX4090:1", "T4:1"))
    assert "no estimate: the model's 16.1 GB do not fit on 1 x T4" in call("plan", "chat.yaml").out


@pytest.mark.slow
def test_requests_that_were_served_are_gone_by_instead(call: Call) -> None:
    write_chat()
    rows = [
        {
            "input_toks": 300, "output_toks": 40, "queued_ts": 100.0 + number, "scheduled_ts": 100.0 + number,
            "first_token_ts": 100.05 + number, "last_token_ts": 100.05 + number + 39 * 0.03,
        }
        for number in range(24)
    ]  # fmt: skip
    Path("served.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    planned = call("plan", "chat.yaml", "--tokens", "300,40", "--served", "served.jsonl").out
    assert "chat: by served.jsonl, as" in planned
    assert "above the 1.04 requests/s of served.jsonl nothing was measured: within about 30 %" in planned
    assert "memory was never short, so it is that of the data sheet" in planned
    # At little load a further token takes as long as it took there, not the 23 ms of the data sheet.
    least = next(line for line in planned.splitlines() if line.endswith(" ms")).split()
    assert float(least[-2]) == pytest.approx(30.0, abs=3.0)


@pytest.mark.parametrize(
    ("served", "told"),
    [
        ("", "has 0 requests; at least 20 are needed"),
        ('{"input_toks": 1}', "line 1: an object with numbers input_toks"),
        (None, "cannot be read: No such file"),
    ],
)
def test_served_requests_that_cannot_be_used_are_told(call: Call, served: str | None, told: str) -> None:
    write_chat()
    if served is not None:
        Path("served.jsonl").write_text(served)
    assert told in call("plan", "chat.yaml", "--served", "served.jsonl").out


def test_a_plan_in_continuous_integration_starts_nothing_of_the_pull_request(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = desk / "python3"
    interpreter.write_text("#!/bin/sh\ntouch ran\n")
    interpreter.chmod(0o755)
    Path("spec.yaml").write_text("name: t\nrun: ./python3 -m x\ncheckpoint: {to: made}\n")
    monkeypatch.setenv("CI", "true")
    assert call("plan", "spec.yaml").code == 0
    assert not (desk / "made").exists()
    refused = call("plan", "spec.yaml", "--verify")
    assert "leave it out, or add --exec" in refused.err
    monkeypatch.delenv("CI")
    assert call("plan", "spec.yaml").code == 0
    assert not (desk / "ran").exists()


def test_an_error_of_fairlead_in_the_outlook_costs_a_plan_that_line_alone(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise TypeError("poison")

    monkeypatch.setattr(start_outlook, "decide", failing)
    monkeypatch.setattr(run_forecast, "forecast", failing)
    Path("spec.yaml").write_text("name: t\nrun: python -c pass\n")
    planned = call("plan", "spec.yaml")
    assert planned.code == 0
    assert "run: python -c pass" in planned.out
    failed = "Fairlead failed while it simulated the next pass, an error to report: TypeError: poison"
    assert f"t: its start cannot be predicted: {failed}\n" in planned.out
    why = "cannot be estimated, as Fairlead failed at it, an error to report: TypeError: poison.\n"
    assert planned.err == f"The cost {why}The end {why}"
    (fields,) = (json.loads(line) for line in call("plan", "spec.yaml", "--json").out.splitlines())
    assert (fields["phase"], fields["forecast"], fields["reason"]["message"]) == (None, None, failed)
