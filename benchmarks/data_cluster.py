"""Nodes of a run that read one data set from a slow store and from each other; see ``data_loading cluster``.

Each node is two processes of the product, the server of its cache as pods run it out of ``runtime.pyz``, and a rank,
with a cache directory and a loopback address of its own. Ranks begin together, as those of a gang do.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.slow_store import BUCKET, content, sizes
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle
from fairlead.runtime import run_key
from fairlead.runtime.data.layout import FileLayout
from fairlead.runtime.data.manifest import DataManifest
from fairlead.runtime.data.order import epoch_order
from fairlead.runtime.data.peer_server import VARIABLE
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.runtime.data.sources import data_of

BATCH_OF_A_NODE = 16
STEP_BYTES_PER_S = 88e6
PORT = 29499
HOSTS = "127.0.7.{}"


def cluster(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row for each latency."""
    for latency_ms in args.latency_ms.split(","):
        with tempfile.TemporaryDirectory() as name:
            yield _row(args, float(latency_ms), Path(name))


def _row(args: argparse.Namespace, latency_ms: float, root: Path) -> dict[str, Any]:
    total = sum(sizes(args.objects).values())
    (root / "runtime.pyz").write_bytes(bundle())
    run_key.create(root / "key")
    command = [sys.executable, "-m", "benchmarks.slow_store", "--latency-ms", str(latency_ms)]
    store = subprocess.Popen([*command, "--objects", str(args.objects)], stdout=subprocess.PIPE, text=True)
    nodes: list[tuple[subprocess.Popen[bytes], subprocess.Popen[str]]] = []
    try:
        assert store.stdout is not None
        address = f"http://127.0.0.1:{store.stdout.readline().strip()}"
        keys = {
            "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        os.environ.update(keys)
        admitted = Data(DataSet(url=f"s3://{BUCKET}/train", mode="cache", directory=root / "admission"))
        manifest = DataManifest(admitted.entries())
        admitted.close()
        nodes = [_node(args.nodes, node, manifest.version, root, is_alone=args.alone) for node in range(args.nodes)]
        for _, rank in nodes:
            assert rank.stdout is not None
            rank.stdout.readline()
        began = time.monotonic()
        for _, rank in nodes:
            assert rank.stdin is not None
            rank.stdin.write("begin\n")
            rank.stdin.flush()
        killed = _killed(args, address, total, nodes)
        results: dict[int, dict[str, Any]] = {}
        for node, (_, rank) in enumerate(nodes):
            output, _ = rank.communicate(timeout=1800)
            if node not in killed:
                results[node] = json.loads(output.splitlines()[-1])
        elapsed_s = time.monotonic() - began
        sent = _stats(address)
        server_cpu_s = sum(_cpu_s(server.pid) for node, (server, _) in enumerate(nodes) if node in results)
    finally:
        for processes in nodes:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait()
        store.kill()
        store.wait()
    return {
        "nodes": args.nodes,
        "killed": len(killed),
        "peers": not args.alone,
        "objects": args.objects,
        "latency_ms": latency_ms,
        "store_ratio": round(sent["bytes"] / total, 3),
        "requests": sent["requests"],
        "wrong_or_torn": sum(result["wrong"] for result in results.values()),
        "twice_or_missing": sum(
            results[node]["order"] != expected
            for node, expected in _orders(manifest, args.nodes)
            if node in results
        ),
        "finished": len(results),
        "first_batch_s": round(max(result["first_batch_s"] for result in results.values()), 2),
        "epoch_s": round(max(result["epoch_s"] for result in results.values()), 2),
        "whole_s": round(elapsed_s, 1),
        "busy": round(min(result["busy"] for result in results.values()), 3),
        "cpu_s_per_gb": round(sum(result["cpu_s"] for result in results.values()) / len(results) / total * 1e9, 2),
        "server_cpu_s_per_gb": round(server_cpu_s / len(results) / total * 1e9, 2),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _node(
    num_nodes: int, node: int, version: str, root: Path, *, is_alone: bool
) -> tuple["subprocess.Popen[bytes]", "subprocess.Popen[str]"]:
    data = {"train": {"from": f"s3://{BUCKET}/train", "mode": "cache", "version": version}}
    env = os.environ | {
        "FAIRLEAD_DATA": json.dumps(data), "FAIRLEAD_DATA_DIR": str(root / str(node)),
        VARIABLE: f"{HOSTS}:{PORT}", "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(num_nodes),
        "FAIRLEAD_RUN_UID": "benchmark", "FAIRLEAD_ATTEMPT": "0", run_key.FILE: str(root / "key"),
    }  # fmt: skip
    server = subprocess.Popen([sys.executable, "-I", str(root / "runtime.pyz"), "data", str(PORT)], env=env)
    if is_alone:
        env = {name: value for name, value in env.items() if name != VARIABLE}
    rank = [sys.executable, "-m", "benchmarks.data_loading", "cluster", "--nodes", str(num_nodes), "--rank", str(node)]
    return server, subprocess.Popen(
        [*rank, "--as-reader", "node"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _killed(args: argparse.Namespace, address: str, total: int, nodes: Any) -> set[int]:
    """Kill nodes, each with both processes, once half of the data left the store."""
    if not args.kill:
        return set()
    while _stats(address)["bytes"] < total / 2:
        time.sleep(0.05)
    chosen = set(random.Random(args.nodes).sample(range(args.nodes), args.kill))
    for node in chosen:
        for process in nodes[node]:
            process.send_signal(signal.SIGKILL)
    return chosen


def _stats(address: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{address}/stats") as answer:
        stats: dict[str, int] = json.load(answer)
        return stats


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _orders(manifest: DataManifest, num_nodes: int) -> Iterator[tuple[int, str]]:
    """Yield the digest of the names that each node has to read, in their order."""
    layout = FileLayout(manifest)
    order = epoch_order(layout, lambda bundle: len(layout.bundles[bundle]), version=manifest.version, seed=0, epoch=0)
    names = [manifest.entries[layout.member(ref).entry].key for ref in order]
    batch = BATCH_OF_A_NODE * num_nodes
    for node in range(num_nodes):
        digest = hashlib.sha256()
        for at in range(0, len(names), batch):
            part = names[at : at + batch]
            for name in part[node * len(part) // num_nodes : (node + 1) * len(part) // num_nodes]:
                digest.update(f"{name}\n".encode())
        yield node, digest.hexdigest()


def read(node: int, num_nodes: int) -> dict[str, Any]:
    """Read an epoch as the rank of a node, and compare each object with its bytes in the store."""
    data = data_of(os.environ, "train", rank=node, world_size=num_nodes)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = os.times()
    began, order, wrong = time.monotonic(), hashlib.sha256(), 0
    first_batch_s, worked_s = 0.0, 0.0
    for batch in data.batches(BATCH_OF_A_NODE * num_nodes):
        first_batch_s = first_batch_s or time.monotonic() - began
        for sample in batch:
            name = f"{sample['__key__']}.jpg"
            order.update(f"{name}\n".encode())
            wrong += sample["jpg"] != content(f"train/{name}", len(sample["jpg"]))
        step_s = sum(len(sample["jpg"]) for sample in batch) * num_nodes / STEP_BYTES_PER_S
        time.sleep(step_s)
        worked_s += step_s
    epoch_s = time.monotonic() - began
    data.close()
    used = os.times()
    return {
        "first_batch_s": first_batch_s,
        "epoch_s": epoch_s,
        "busy": worked_s / max(epoch_s - first_batch_s, 1e-9),
        "cpu_s": used.user + used.system - begun.user - begun.system,
        "wrong": wrong,
        "order": order.hexdigest(),
    }
