"""Measures cold starts of an endpoint with a small PyTorch predictor: `python -m benchmarks.cold_starts [--starts 50]`.

The endpoint sleeps at zero replicas on this machine. Each start is one request to the gateway, from sending it until
its answer is there; then the endpoint falls asleep again. The replica is forked from the launcher that imported PyTorch
for the one that was ready before the endpoint first slept. Bar: 99 of 100 within 1 s. Prints the parts too, as medians:
until the replica's process starts (wake-up, decision, fork), its own imports, the predictor's module, its
`load`, the warm-up, and the rest, in which the gateway learns of it and passes the request on.
"""

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.endpoints import gateway_url
from fairlead.runtime.podfiles import read_json
from fairlead.specs.resources import Resources
from fairlead.specs.serving import Batching, Scale, Serving
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Workload
from tests.home import end_everything

PREDICTOR = """
import torch


class Network:
    inputs = {"x": ("FP32", (-1, 256))}
    outputs = {"y": ("FP32", (-1, 10))}

    def load(self, model):
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).eval()

    def predict(self, batch):
        with torch.inference_mode():
            return {"y": self.layers(torch.from_numpy(batch["x"])).numpy()}
"""
REQUEST = json.dumps({"inputs": [{"name": "x", "shape": [1, 256], "datatype": "FP32", "data": [0.5] * 256}]}).encode()
PARTS = {
    "process": "until its process starts",
    "import_s": "its imports",
    "import_predictor_s": "the predictor's module",
    "load_s": "load",
    "warm_up_s": "warm-up",
    "rest": "until the answer",
}
BAR_S = 1.0
PATIENCE_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50, help="how often the endpoint is woken (default 50)")
    parser.add_argument("--json", action="store_true", help="one JSON object a start instead of a table")
    arguments = parser.parse_args()
    if arguments.starts < 1:
        parser.error(f"--starts {arguments.starts}: give 1 or more")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        starts = list(measure(Path(directory), arguments.starts))
    if arguments.json:
        for each in starts:
            print(json.dumps(each))
        return
    took = np.array([each["took_s"] for each in starts])
    median, most = np.quantile(took, [0.5, 0.99])
    print(f"{len(starts)} starts: median {median:.2f} s, 99 % within {most:.2f} s (bar {BAR_S:g} s)")
    for key, what in PARTS.items():
        print(f"  {what:<28}{1000 * float(np.median([each[key] for each in starts])):>8.0f} ms")


def measure(home: Path, num: int) -> Iterator[dict[str, float]]:
    """Yield what each start took, in seconds, with its parts."""
    work = home / "work"
    work.mkdir()
    (work / "small.py").write_text(PREDICTOR)
    cluster = LocalCluster.open(home / "home")
    try:
        endpoint = cluster.submit(
            Serving(
                name="small", predictor="small:Network", workdir=str(work), replicas=0, most_replicas=1,
                snapshot=False, scale=Scale(idle_s=1.0, window_s=1.0), batching=Batching(max_batch_size=4),
                resources=Resources(cpu_milli=500), grace_s=1.0,
            )
        )  # fmt: skip
        cluster.nudge()
        for _ in range(num):
            _until_asleep(cluster, endpoint)
            yield _start(cluster, endpoint)
    finally:
        cluster.close()
        end_everything(home / "home")


def _start(cluster: LocalCluster, endpoint: Workload[Serving]) -> dict[str, float]:
    url = f"{gateway_url(cluster.home)}/small/v2/models/small/infer"
    began = time.time()
    with urllib.request.urlopen(urllib.request.Request(url, REQUEST), timeout=PATIENCE_S) as answer:
        answer.read()
    took = time.time() - began
    (replica,) = cluster.children(endpoint.uid)
    (pod,) = cluster.pods(replica.uid)
    place = cluster.home.pod(replica.uid, pod.uid)
    started = read_json(place / "started.json") or {}
    told = next(line for line in (place / "output.log").read_text().splitlines() if '"ready"' in line)
    times = json.loads(told[told.index("{") :])
    parts = {key: float(times[key]) for key in PARTS if key in times}
    parts["process"] = float(started["at"]) - began
    return {"took_s": took, **parts, "rest": took - parts["process"] - float(times["ready_s"])}


def _until_asleep(cluster: LocalCluster, endpoint: Workload[Serving]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        reason = cluster.get(endpoint.uid).status.reason
        if reason is not None and reason.code is Code.ASLEEP and not cluster.children(endpoint.uid):
            return
        if time.monotonic() > end:
            sys.exit(f"The endpoint did not fall asleep within {PATIENCE_S:g} s: {reason}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
