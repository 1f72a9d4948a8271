"""Reading data from a slow store: ``reader``, ``faults`` with kills, ``shuffle``, and ``cluster`` on many nodes.

    python -m benchmarks.data_loading reader [--objects 2000] [--latency-ms 5,50] [--ranks 1] [--readers NAME] [--tls]
    python -m benchmarks.data_loading faults [--kills 100] [--json]
    python -m benchmarks.data_loading shuffle [--json]
    python -m benchmarks.data_loading cluster [--nodes 12] [--kill 2] [--alone] [--objects 2000] [--json]
    python -m benchmarks.data_loading cluster --simulate --data DIR [--nodes N --cache-gb GB --store-gb-s RATE] [--json]

``reader`` starts `benchmarks.slow_store` (100 MB/s for all clients) and lets each reader, in a process of its own and
in turns, read two epochs while a step takes as long as 88 MB/s need: seconds to the first batch without imports, the
share of the time after it that steps took (busy) by epoch, CPU seconds a GB by epoch, and the bytes that left the store
over those of the data set. ``fairlead`` reads through its cache, requests signed; ``s3fs`` is `cat_file` in 32 threads,
128 samples ahead. With ``--tls`` the store speaks TLS. CPU seconds depend least on other load; busy and first batch are
those of the machine as it is.

``faults`` forks readers that share a small cache, kills each at a random moment with SIGKILL, changes the number of
ranks between 1, 3, 2 and 4, and compares the digest of all samples in their order, bytes included, with a run without
kills. ``left_over`` are unfinished files after that.

``shuffle`` counts classes in 50 batches of 64 of 100,000 samples in 1,000 classes, sorted by class: distinct classes
beside those of a full shuffle, and the chi-squared of 20 groups of classes over its degrees of freedom.

``cluster`` starts the store and a rank and a server of its cache for each node, all real processes with directories
and loopback addresses of their own, and reads one epoch as one gang, each node its slices of the batches.
``store_ratio`` is what left the store, listing included, over the bytes of the data set; ``--kill`` ends nodes with
SIGKILL once half of that left the store, ``--alone`` lets each node read for itself. Every object is compared with its
bytes in the store, and the names that a node read with those that it has to read, in their order. CPU seconds are those
of a rank, a GB of the data set.

``cluster --simulate`` replays the jobs of DIR/data/*/jobs.csv (submit_s, gpus, duration_s, dataset, mb_s_per_gpu; sizes
in datasets.csv) through ``fairlead simulate``'s own path on nodes of 8 GPUs whose caches are shared, in front of one
store: TB that left the store, mean hours from submission to end, and the share of held GPU time that was not spent
waiting for data. Without options, three regimes: 1 TB or 300 GB a node at 1 GB/s, and 200 GB at .5 GB/s.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import random
import resource
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import data_cluster
from benchmarks.slow_store import BUCKET, content, sizes
from fairlead.control.outcomes import summary
from fairlead.control.simulation import World, simulate
from fairlead.runtime.data.layout import FileLayout
from fairlead.runtime.data.manifest import DataManifest, Entry
from fairlead.runtime.data.order import epoch_order
from fairlead.runtime.data.reader import Data, DataSet
from fairlead.specs.pool import Hardware, Pool, PoolGpu
from fairlead.specs.simulation import Simulation, Store
from fairlead.traces.arrivals import Arrival
from fairlead.traces.reading import read_trace

GPUS = PoolGpu(model="A100", count=8)

STEP_BYTES_PER_S = 88e6
REGIMES = ((1_000.0, 1.0), (300.0, 1.0), (200.0, 0.5))
"""GB of cache on each node, and GB/s of the store."""
BATCH = 64
READERS = ("fairlead", "s3fs")
RANKS = (1, 3, 2, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("reader", "faults", "shuffle", "cluster"))
    parser.add_argument("--objects", type=int, default=2_000)
    parser.add_argument("--latency-ms", help="several with commas; 5,50, of a cluster 5")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--kill", type=int, default=0, metavar="NODES")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--cache-gb", type=float)
    parser.add_argument("--store-gb-s", type=float)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-reader", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.latency_ms = args.latency_ms or ("5" if args.what == "cluster" else "5,50")
    if args.as_reader == "node":
        print(json.dumps(data_cluster.read(args.rank, args.nodes)))
        return
    if args.as_reader:
        print(json.dumps(_read(args.as_reader, args.rank, args.ranks)))
        return
    if args.simulate and not args.data:
        parser.error("cluster --simulate: give --data DIR, which has data/*/jobs.csv and datasets.csv")
    if not 0 <= args.kill < args.nodes:
        parser.error("--kill: give fewer nodes than --nodes")
    if (args.cache_gb is None) != (args.store_gb_s is None):
        parser.error("--cache-gb and --store-gb-s describe one regime together; give both, or none for all three")
    on_nodes = _simulated if args.simulate else data_cluster.cluster
    rows = {"reader": _readers, "faults": _faults, "shuffle": _shuffle, "cluster": on_nodes}[args.what](args)
    for row in rows:
        print(json.dumps(row) if args.json else "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def _simulated(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pool = Pool(name="gpu", nodes=args.nodes, hardware=Hardware(cpu_milli=96_000, memory_bytes=2**40, gpu=GPUS))
    regimes = REGIMES if args.cache_gb is None else ((args.cache_gb, args.store_gb_s),)
    for jobs in sorted(args.data.glob("data/*/jobs.csv")):
        arrivals = _arrivals(jobs)
        for cache_gb, store_gb_s in regimes:
            store = Store(rate=round(store_gb_s * 1e9), cache=round(cache_gb * 1e9))
            began = time.process_time()
            outcome = simulate(arrivals, (pool,), World(simulations=(Simulation(name="store", store=store),)))
            figures = summary(outcome).whole
            assert outcome.store_gb is not None
            yield {
                "policy": "default",
                "workload": jobs.parent.name,
                "nodes": args.nodes,
                "cache_gb": cache_gb,
                "store_gb_s": store_gb_s,
                "store_tb": round(outcome.store_gb / 1e3, 1),
                "mean_completion_h": round((figures.average_completion_s or 0.0) / 3600, 2),
                "busy": round(figures.goodput or 0.0, 4),
                "unfinished": figures.unfinished,
                "cpu_s": round(time.process_time() - began, 1),
            }


def _arrivals(jobs: Path) -> tuple[Arrival, ...]:
    """Return the jobs of a table; those with more GPUs than a node are gangs of whole nodes."""
    with jobs.with_name("datasets.csv").open(encoding="utf-8") as file:
        sizes_gb = {row["dataset"]: float(row["gb"]) for row in csv.DictReader(file)}
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("submit_s", "duration_s", "name", "nodes", "gpu", "data", "data_gb", "data_mb_s"))
    with jobs.open(encoding="utf-8") as file:
        for job in csv.DictReader(file):
            gpus, mb_s = int(job["gpus"]), float(job["mb_s_per_gpu"])
            nodes = -(-gpus // GPUS.count)
            if gpus % nodes:
                raise SystemExit(f"{jobs}: job {job['job']}: {gpus} GPUs do not divide into {nodes} nodes")
            columns = (job["submit_s"], job["duration_s"], f"job-{job['job']}", nodes, gpus // nodes)
            writer.writerow((*columns, job["dataset"], sizes_gb[job["dataset"]], gpus * mb_s))
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory, "trace.csv")
        trace.write_text(text.getvalue(), encoding="utf-8")
        return read_trace(trace)


def _readers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    total = sum(sizes(args.objects).values())
    for latency_ms in args.latency_ms.split(","):
        for reader in args.readers.split(","):
            command = [sys.executable, "-m", "benchmarks.slow_store", "--latency-ms", latency_ms]
            command += ["--objects", str(args.objects)]
            scheme = "https" if args.tls else "http"
            with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
                authority = Path(directory, "authority.pem")
                if args.tls:
                    command += ["--tls", str(authority)]
                store = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                try:
                    assert store.stdout is not None
                    address = f"{scheme}://127.0.0.1:{store.stdout.readline().strip()}"
                    ranks = 1 if reader != "fairlead" else args.ranks
                    results = _run(reader, ranks, address, directory, authority)
                    trusted = ssl.create_default_context(cafile=str(authority)) if args.tls else None
                    with urllib.request.urlopen(f"{address}/stats", context=trusted) as answer:
                        sent = json.load(answer)
                finally:
                    store.kill()
            first = results[0]
            yield {
                "reader": reader,
                "latency_ms": float(latency_ms),
                "tls": args.tls,
                "ranks": ranks,
                "objects": args.objects,
                "first_batch_s": round(first["first_batch_s"], 2),
                "busy": [round(value, 3) for value in first["busy"]],
                "cpu_s_per_gb": [
                    round(sum(result["cpu_s"][epoch] for result in results) / total * 1e9, 2) for epoch in (0, 1)
                ],
                "store_ratio": round(sent["bytes"] / total, 3),
                "requests": sent["requests"],
                "load": round(os.getloadavg()[0], 1),
            }


def _run(reader: str, ranks: int, address: str, directory: str, authority: Path) -> list[dict[str, Any]]:
    env = os.environ | {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_DEFAULT_REGION": "us-east-1", "FAIRLEAD_DATA_DIR": directory,
    }  # fmt: skip
    if authority.exists():
        env["AWS_CA_BUNDLE"] = str(authority)
    if ranks > 1:  # ranks of a run get the version that admission listed
        listing = "from benchmarks.data_loading import by_fairlead; print(by_fairlead(0, 1).version)"
        listed = subprocess.run([sys.executable, "-c", listing], env=env, stdout=subprocess.PIPE, text=True, check=True)
        env["BENCHMARK_VERSION"] = listed.stdout.strip()
    command = [sys.executable, "-m", "benchmarks.data_loading", "reader", "--as-reader", reader, "--ranks", str(ranks)]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], env=env, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    results = []
    for process in processes:
        output, _ = process.communicate(timeout=900)
        results.append(json.loads(output.splitlines()[-1]))
    return results


def _read(reader: str, rank: int, ranks: int) -> dict[str, Any]:
    """Read two epochs; return the seconds to the first batch, and busy and CPU seconds of each epoch."""
    batches = {"fairlead": _by_fairlead, "s3fs": _by_s3fs}[reader]
    begin, began = batches(rank, ranks), time.monotonic()
    used = _cpu_s()
    first_batch_s, busy, cpu_s = 0.0, [], []
    for epoch in range(2):
        worked_s, since = 0.0, time.monotonic()
        for number, batch in enumerate(begin(epoch)):
            if number == 0:
                if epoch == 0:
                    first_batch_s = time.monotonic() - began
                since = time.monotonic()
            step_s = sum(map(len, batch)) * ranks / STEP_BYTES_PER_S
            time.sleep(step_s)
            worked_s += step_s
        busy.append(min(1.0, worked_s / (time.monotonic() - since)))
        cpu_s.append(_cpu_s() - used)
        used = _cpu_s()
    return {"first_batch_s": first_batch_s, "busy": busy, "cpu_s": cpu_s}


def by_fairlead(rank: int, ranks: int) -> Data:
    """Return the data as a rank of a run has it."""
    source = DataSet(
        url=f"s3://{BUCKET}/train",
        mode="cache",
        version=os.environ.get("BENCHMARK_VERSION"),
        directory=Path(os.environ["FAIRLEAD_DATA_DIR"]),
    )
    return Data(source, rank=rank, world_size=ranks)


def _by_fairlead(rank: int, ranks: int) -> Callable[[int], Iterator[list[bytes]]]:
    data = by_fairlead(rank, ranks)

    def batches(epoch: int) -> Iterator[list[bytes]]:
        for batch in data.batches(BATCH, epochs=epoch + 1):
            yield [sample["jpg"] for sample in batch]

    return batches


def _by_s3fs(rank: int, ranks: int) -> Callable[[int], Iterator[list[bytes]]]:
    import s3fs

    system = s3fs.S3FileSystem()
    keys: list[str] = []
    threads = ThreadPoolExecutor(32)

    def batches(epoch: int) -> Iterator[list[bytes]]:
        if not keys:
            keys.extend(sorted(system.find(f"{BUCKET}/train")))
        order = random.Random(epoch).sample(keys, len(keys))
        waiting: deque[Future[bytes]] = deque()
        upcoming = iter(order)
        for key in islice(upcoming, 2 * BATCH):
            waiting.append(threads.submit(system.cat_file, key))
        while waiting:
            batch = [waiting.popleft() for _ in range(min(BATCH, len(waiting)))]
            waiting.extend(threads.submit(system.cat_file, key) for key in islice(upcoming, BATCH))
            yield [future.result() for future in batch]

    return batches


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _faults(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for number in range(400):
            path = root / "files" / f"{number:04}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content(str(number), rng.randint(10_000, 100_000)))
        whole = _digest_of(root / "whole", root, 0, epochs=EPOCHS)
        kills = passes = wrong = 0
        state = root / "state"
        while kills < args.kills:
            ranks = RANKS[kills % len(RANKS)]
            child = os.fork()
            if child == 0:
                try:
                    _digest_of(state, root, 12_000_000, epochs=EPOCHS, ranks=ranks)
                    os._exit(0)
                except BaseException as error:  # noqa: BLE001  # a forked process must not go on
                    print(f"failed: {error!r}", file=sys.stderr, flush=True)
                    os._exit(1)
            time.sleep(rng.uniform(0.02, 0.4))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            kills += 1
            if os.WIFEXITED(status):
                passes += 1
                wrong += os.WEXITSTATUS(status) != 0 or json.loads(state.read_text())["digest"] != whole
                state.unlink(missing_ok=True)
        digest = _digest_of(state, root, 12_000_000, epochs=EPOCHS)
        wrong += digest != whole
        left = len(list((root / "data" / "bundles").rglob("*.part")))
        yield {"kills": kills, "passes": passes + 1, "wrong_twice_or_missing": wrong, "left_over": left}


EPOCHS = 3


def _digest_of(path: Path, root: Path, limit: int, *, epochs: int, ranks: int = 1) -> str:
    """Read on from the position in a file, which is replaced after each batch; return the digest of all samples."""
    source = DataSet(
        url=str(root / "files"), mode="cache" if limit else "mount", directory=root / "data", limit=limit or None
    )
    parts = [Data(source, rank=rank, world_size=ranks) for rank in range(ranks)]
    digest = ""
    if path.exists():
        stored = json.loads(path.read_text())
        digest = stored["digest"]
        for part in parts:
            part.load_state_dict(stored["position"])
    for batch in zip(*(part.batches(16, epochs=epochs) for part in parts), strict=True):
        for samples in batch:
            for sample in samples:
                digest = hashlib.sha256(digest.encode() + sample["__key__"].encode() + sample["bin"]).hexdigest()
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps({"digest": digest, "position": parts[0].state_dict()}))
        partial.replace(path)
    return digest


def _shuffle(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    num_classes, per_class, groups = 1_000, 100, 20
    entries = [
        Entry(f"{label:04}/{number:03}.jpg", 55_000, "x") for label in range(num_classes) for number in range(per_class)
    ]
    manifest = DataManifest(entries)
    layout = FileLayout(manifest)
    order = epoch_order(layout, lambda bundle: len(layout.bundles[bundle]), version=manifest.version, seed=0, epoch=0)
    ours = [layout.member(ref).entry // per_class for ref in islice(order, 50 * BATCH)]
    full = [number // per_class for number in random.Random(5).sample(range(len(entries)), 50 * BATCH)]
    for name, labels in (("full shuffle", full), ("fairlead", ours)):
        batches = [labels[at : at + BATCH] for at in range(0, len(labels), BATCH)]
        expected = BATCH / groups
        squares = 0.0
        for batch in batches:
            counts = Counter(label * groups // num_classes for label in batch)
            squares += sum((counts[group] - expected) ** 2 / expected for group in range(groups))
        yield {
            "order": name,
            "distinct_classes": round(sum(len(set(batch)) for batch in batches) / len(batches), 2),
            "chi_squared_over_dof": round(squares / len(batches) / (groups - 1), 3),
        }


if __name__ == "__main__":
    main()
