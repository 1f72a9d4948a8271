"""Slow links of a simulated network: how many are named after few rounds of pairwise measurements, how many wrongly.

    python -m benchmarks.slow_links [--nodes 1024] [--cases 50] [--seed 0] [--json]

Pods of 256 nodes have leaves of 32 nodes, with 4 uplinks each; pods have 32. The time of a pair is the factor of the
slowest link that it uses, of parallel ones a random one, with 5 % of normal noise; 2 % of the measurements take 1.2 to
2 times as long without a cause. `fault` is what is slow by the factor: a NIC, one uplink of a leaf, one quarter of the
uplinks of a pod, nothing, or three of these at once. `named` counts cases in which all are named, `wrong` components
that are named and well. The rounds and the verdict are those of `python -m fairlead.runtime.network`.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence

from fairlead.runtime.network.slow_links import Pair, Topology, plan_rounds, slow_links

LEAF, POD = 32, 256
LEAF_UPLINKS, POD_UPLINKS = 4, 32
NOISE, OUTLIERS = 0.05, 0.02
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
    arguments = parser.parse_args(given)
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
