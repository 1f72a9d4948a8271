"""A simulated text server: nothing is lost, memory is never overdrawn, and its own coefficients are found again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import text_serving
from benchmarks.candidates.text_serving import Coefficients, Engine, Request, fit, simulate

STEP = Coefficients(base=0.02, sequence=3e-5, context=1e-7, prompt=1e-4, prompt_base=0.01, mixed=2e-5)


def drawn(num: int, seed: int = 1, every_s: float = 0.05) -> list[Request]:
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(every_s, num))
    return [
        Request(arrived_s=float(at[i]), prompt=int(rng.integers(20, 900)), output=int(rng.integers(2, 60)))
        for i in range(num)
    ]


def test_a_request_by_itself_takes_its_steps() -> None:
    served = simulate([Request(arrived_s=1.0, prompt=100, output=11)], STEP, Engine())
    assert served.first_s[0] == pytest.approx(1.0 + max(0.02, 0.01 + 100 * 1e-4))
    contexts = sum(range(100, 110))
    assert served.last_s[0] - served.first_s[0] == pytest.approx(10 * (0.02 + 8 * 3e-5) + 1e-7 * contexts)


@pytest.mark.parametrize("blocks", [None, 400, 80])
def test_every_request_gets_all_its_tokens_in_any_memory(blocks: int | None) -> None:
    requests = drawn(60)
    served = simulate(requests, STEP, Engine(blocks=blocks))
    arrived = np.array([each.arrived_s for each in requests])
    assert np.all(served.first_s > arrived)
    assert np.all(served.last_s >= served.first_s)


def test_less_memory_takes_longer() -> None:
    requests = drawn(80)
    ends = [float(simulate(requests, STEP, Engine(blocks=blocks)).last_s.max()) for blocks in (None, 200, 70)]
    assert ends == sorted(ends)


def test_a_request_that_memory_never_holds_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than the 10 blocks"):
        simulate([Request(arrived_s=0.0, prompt=1000, output=2)], STEP, Engine(blocks=10))


def test_its_first_requests_tell_how_it_serves_the_others() -> None:
    requests = drawn(60)
    truth = simulate(requests, STEP, Engine())
    found, engine = fit(requests, truth, 30, Engine(), evaluations=150)
    ours = text_serving.metrics(requests, simulate(requests, found, engine))
    for metric, value in text_serving.metrics(requests, truth).items():
        assert ours[metric] == pytest.approx(value, rel=0.15), metric


def test_rows_have_what_was_measured_beside_what_was_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = drawn(20)
    served = simulate(requests, replace(STEP, base=0.03), Engine())
    lines = [
        json.dumps(
            {
                "input_toks": each.prompt, "output_toks": each.output, "queued_ts": 100.0 + each.arrived_s,
                "scheduled_ts": 100.0 + each.arrived_s, "first_token_ts": 100.0 + float(served.first_s[i]),
                "last_token_ts": 100.0 + float(served.last_s[i]),
            }
        )
        for i, each in enumerate(requests)
    ]  # fmt: skip
    (tmp_path / "made.requests.jsonl").write_text("\n".join(lines))
    text_serving.main(["--data", str(tmp_path), "--json", "--evaluations", "10", "--max-seqs", "2"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"ttft_mean", "ttft_median", "tpot_mean", "latency_mean"} <= {row["metric"] for row in rows}
    assert set(rows[0]) == {"run", "metric", "measured_ms", "simulated_ms"}
