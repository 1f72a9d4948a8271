"""Slow links of a simulated network: how many are named after few rounds of pairwise measurements, how many wrongly.

    python -m benchmarks.slow_links [--nodes 1024] [--cases 50] [--seed 0] [--live] [--json]

Pods of 256 nodes have leaves of 32 nodes, with 4 uplinks each; pods have 32. The time of a pair is the factor of the
slowest link that it uses, of parallel ones a random one, with 5 % of normal noise; 2 % of the measurements take 1.2 to
2 times as long without a cause. `fault` is what is slow by the factor: a NIC, one uplink of a leaf, one quarter of the
uplinks of a pod, nothing, or three of these at once. `named` counts cases in which all are named, `wrong` components
that are named and well. The rounds and the verdict are those of `python -m fairlead.runtime.network`.

With `--live` four real processes of that program measure in network namespaces at 400 Mbit/s, of which each in turn has
120; `seconds` is the longest time from their start to their end. It needs root and tc.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairlead.runtime import run_key
from fairlead.runtime.network.slow_links import Pair, Topology, plan_rounds, slow_links
from tests.network_namespaces import FIRST_ADDRESS, MBIT_S, SLOW_MBIT_S, namespaces
from tests.ports import free_port

LEAF, POD = 32, 256
LEAF_UPLINKS, POD_UPLINKS = 4, 32
NOISE, OUTLIERS = 0.05, 0.02
LIVE_NODES, LIVE_S = 4, 0.4
FAULTS = {"none": 6, "nic": 6, "leaf uplink": 6, "pod uplinks": 6, "three": 12}
"""Rounds by fault."""
Component = tuple[str, ...]


def main(given: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024, help="nodes of the network (default 1024)")
    parser.add_argument("--cases", type=int, default=50, help="cases of each row (default 50)")
    parser.add_argument("--factor", type=float, default=1.25, help="slowness of a fault (default 1.25)")
    parser.add_argument("--faults", default=",".join(FAULTS), help="faults, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--live", action="store_true", help="measure between real processes instead")
    arguments = parser.parse_args(given)
    if arguments.live:
        live = live_row()
        print(json.dumps(live) if arguments.json else "  ".join(f"{name} {value}" for name, value in live.items()))
        return
    for row in rows(arguments.nodes, arguments.cases, arguments.factor, arguments.seed, arguments.faults.split(",")):
        print(json.dumps(row) if arguments.json else "  ".join(f"{name} {value}" for name, value in row.items()))


def rows(num_nodes: int, cases: int, factor: float, seed: int, faults: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield a row for each kind of fault."""
    topology = {f"n{i}": (f"pod-{i // POD}", f"leaf-{i // LEAF}") for i in range(num_nodes)}
    for fault in faults:
        num_rounds, named, wrong = FAULTS[fault], 0, 0
        for case in range(cases):
            rng = random.Random(f"{seed}/{fault}/{case}")
            kinds = ("nic", "leaf uplink", "pod uplinks") if fault == "three" else (fault,)
            slow = {component for kind in kinds for component in _draw(kind, topology, rng)}
            results = [
                {pair: _measure(topology, pair, slow, factor, rng) for pair in pairs}
                for pairs in plan_rounds(topology, num_rounds, rng)
            ]
            links = {(link.node,) if link.node else link.domain for link in slow_links(topology, results)}
            named += slow <= links
            wrong += len(links - slow)
        yield {"fault": fault, "factor": factor, "rounds": num_rounds, "named": named, "of": cases, "wrong": wrong}


def live_row() -> dict[str, object]:
    """Return the row of four real processes, of which each has a slow link once."""
    named, wrong, longest_s = 0, 0, 0.0
    for slow in range(LIVE_NODES):
        with namespaces(LIVE_NODES, slow) as names, tempfile.TemporaryDirectory() as folder:
            key = Path(folder) / "key"
            run_key.write(key, run_key.new_key())
            port = free_port()
            began = time.monotonic()
            ranks = [
                subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, "-m", "fairlead.runtime.network",
                     f"--seconds={LIVE_S}", "--json"],
                    stdout=subprocess.PIPE, text=True,
                    env=os.environ | {
                        "RANK": str(number), "WORLD_SIZE": str(LIVE_NODES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                        "GROUP_RANK": str(number), "MASTER_ADDR": FIRST_ADDRESS, "FAIRLEAD_AGREE_PORT": str(port),
                        "FAIRLEAD_KEY_FILE": str(key), "FAIRLEAD_RUN_UID": f"u{slow}", "FAIRLEAD_NODE": f"n{number}",
                    },
                )
                for number, name in enumerate(names)
            ]  # fmt: skip
            output = [rank.communicate(timeout=300)[0] for rank in ranks]
            longest_s = max(longest_s, time.monotonic() - began)
        nodes = [link["node"] for link in json.loads(output[0])["slow"]]
        right = f"n{slow} (pod {slow})"
        named += right in nodes
        wrong += len([node for node in nodes if node != right])
    factor = round(MBIT_S / SLOW_MBIT_S, 2)
    row = {"fault": "live link", "factor": factor, "rounds": 6, "named": named, "of": LIVE_NODES, "wrong": wrong}
    return {**row, "seconds": round(longest_s, 1)}


def _draw(kind: str, topology: Topology, rng: random.Random) -> list[Component]:
    name = rng.choice(sorted(topology))
    pod, leaf = topology[name]
    slow: dict[str, list[Component]] = {
        "none": [],
        "nic": [(name,)],
        "leaf uplink": [(pod, leaf)],
        "pod uplinks": [(pod,)],
    }
    return slow[kind]


def _measure(topology: Topology, pair: Pair, slow: set[Component], factor: float, rng: random.Random) -> float:
    is_slow = False
    for name in pair:
        pod, leaf = topology[name]
        is_slow |= (name,) in slow
        if topology[pair[0]] != topology[pair[1]]:
            is_slow |= (pod, leaf) in slow and rng.randrange(LEAF_UPLINKS) == 0
        if topology[pair[0]][0] != topology[pair[1]][0]:
            is_slow |= (pod,) in slow and rng.randrange(POD_UPLINKS) < POD_UPLINKS // 4
    outlier = rng.uniform(1.2, 2.0) if rng.random() < OUTLIERS else 1.0
    return max(0.1, 1 + rng.gauss(0, NOISE)) * max(factor if is_slow else 1.0, outlier)


if __name__ == "__main__":
    main()
