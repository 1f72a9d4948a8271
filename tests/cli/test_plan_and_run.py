"""Whatever `plan` says would happen to a file is what `run` does with it: the same verdict, names and sentences."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

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
    if planned.code != 1:
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


def test_plan_of_what_is_under_way_says_that_run_would_not_start_it_again(call: Call) -> None:
    Path("t.yaml").write_text("name: t\nrun: sleep 60\n")
    call("run", "-d", "t.yaml")
    planned = call("plan", "t.yaml")
    assert planned.code == 0
    assert "`fairlead attach t` follows it; `fairlead run` would refuse a second one" in planned.out
    assert call("run", "-d", "t.yaml").code == 6
    call("delete", "--all", "--yes")


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
