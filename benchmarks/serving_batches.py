"""Batches of a replica: none, a fixed window, and adaptive ones, on a small network in numpy.

    python -m benchmarks.serving_batches [--seconds 5] [--clients 32] [--rates 100,400] [--json]

The server is a separate process, the clients are in this one. `--clients` send the next request as soon as they have
their answer (closed loop); at each of `--rates` requests come as a Poisson process (open loop; latency counts from when
a request was due). The fixed window waits for `--window-ms` or a full batch, whichever is first, as servers with a
batch delay do. Prints throughput, median and 99th percentile of latency, the server's CPU for each request, and the
rows of a batch.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

POLICIES = ("none", "fixed", "adaptive")
WAIT_S = 60.0
MODEL = """
import numpy as np


class Network:
    inputs = {"x": ("FP32", (-1, 256))}

    def load(self, model):
        dice = np.random.default_rng(0)
        sizes = [256, 2048, 2048, 16]
        self.weights = [dice.standard_normal(pair, dtype=np.float32) / 50 for pair in zip(sizes, sizes[1:])]

    def predict(self, inputs):
        x = inputs["x"]
        for weight in self.weights:
            x = np.maximum(x @ weight, 0)
        return {"y": x}
"""
# The same server, but that it holds every batch back for a fixed time.
FIXED = """
import sys
from fairlead.runtime.serving import batching
window_s = float(sys.argv.pop(1)) / 1000
def hold_until(*, rows, most, oldest, **rest):
    return oldest if rows >= most else oldest + window_s
batching.hold_until = hold_until
from fairlead.runtime.serving.__main__ import main
main()
"""


def main(given: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default %(default)s)")
    parser.add_argument("--clients", type=int, default=32, help="of the closed loop (default %(default)s)")
    parser.add_argument("--rates", default="100,400", help="requests a second of the open loops (default %(default)s)")
    parser.add_argument("--window-ms", type=float, default=10.0, help="of the fixed policy (default %(default)s)")
    parser.add_argument("--max-batch-size", type=int, default=32, help="rows of a batch (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    loads = [0.0, *(float(rate) for rate in arguments.rates.split(",") if rate)]
    if not arguments.json:
        print(f"{'load':<14}{'policy':<10}{'req/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'CPU us':>9}{'rows':>7}{'failed':>8}")
    for rate in loads:
        for policy in POLICIES:
            row = measure(policy, rate, arguments)
            if arguments.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{row['load']:<14}{policy:<10}{row['requests_per_s']:>9.0f}{row['p50_ms']:>9.1f}{row['p99_ms']:>9.1f}"
                f"{row['cpu_us_a_request']:>9.0f}{row['rows_a_batch']:>7.1f}{row['failed']:>8}",
                flush=True,
            )


def measure(policy: str, rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one policy under one load; a rate of 0 is the closed loop."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "network.py").write_text(MODEL)
        program = ["-c", FIXED, str(arguments.window_ms)] if policy == "fixed" else ["-m", "fairlead.runtime.serving"]
        size = 1 if policy == "none" else arguments.max_batch_size
        argv = [sys.executable, *program, "network:Network", "--max-batch-size", str(size), "--max-queue", "10000"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PORT": "0"}
        process = subprocess.Popen(argv, cwd=directory, env=env, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            url = json.loads(process.stderr.readline())["ready"]
            return asyncio.run(_load(url, policy, rate, arguments))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)


async def _load(url: str, policy: str, rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    body = _body()
    latencies: list[float] = []
    failed = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(due: float) -> None:
            nonlocal failed
            async with session.post(f"{url}/v2/models/model/infer", data=body[0], headers=body[1]) as answer:
                await answer.read()
                failed += answer.status != 200
            latencies.append(time.perf_counter() - due)

        async def closed(end: float) -> None:
            while time.perf_counter() < end:
                await ask(time.perf_counter())

        async def opened(end: float) -> None:
            dice, due = random.Random(0), time.perf_counter()
            async with asyncio.TaskGroup() as group:
                while (due := due + dice.expovariate(rate)) < end:
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    group.create_task(ask(due))

        for _ in range(20):
            await ask(time.perf_counter())
        latencies.clear()
        before = await _metrics(session, url)
        began = time.perf_counter()
        end = began + arguments.seconds
        if rate:
            await opened(end)
        else:
            await asyncio.gather(*(closed(end) for _ in range(arguments.clients)))
        took = time.perf_counter() - began
        after = await _metrics(session, url)
    spent = {name: after[name] - before[name] for name in after}
    return {
        "load": f"{rate:g}/s" if rate else f"{arguments.clients} clients",
        "policy": policy,
        "requests_per_s": round(len(latencies) / took, 1),
        "p50_ms": round(float(np.percentile(latencies, 50)) * 1000, 2),
        "p99_ms": round(float(np.percentile(latencies, 99)) * 1000, 2),
        "cpu_us_a_request": round(spent["cpu"] / len(latencies) * 1e6, 1),
        "rows_a_batch": round(spent["rows"] / spent["batches"], 2),
        "failed": failed,
    }


def _body() -> tuple[bytes, dict[str, str]]:
    tensor = np.ones((1, 256), np.float32).tobytes()
    spec = {"name": "x", "shape": [1, 256], "datatype": "FP32", "parameters": {"binary_data_size": len(tensor)}}
    head = json.dumps({"inputs": [spec], "parameters": {"binary_data_output": True}}).encode()
    return head + tensor, {"Inference-Header-Content-Length": str(len(head))}


async def _metrics(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    names = {
        "cpu": "process_cpu_seconds_total",
        "rows": 'fairlead:batch_size_sum{model_name="model"}',
        "batches": 'fairlead:batch_size_count{model_name="model"}',
    }
    found = {key: re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE) for key, name in names.items()}
    return {key: float(match[1]) if match is not None else 0.0 for key, match in found.items()}


if __name__ == "__main__":
    main()
