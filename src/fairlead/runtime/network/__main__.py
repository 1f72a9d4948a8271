"""Tests the network between the nodes of a run; to be started by Fairlead, as ``run`` of a spec with ``nodes``."""

import argparse
import json
import os
import sys

from fairlead.runtime.environment import read_environment
from fairlead.runtime.errors import AgreementFailed, Misuse
from fairlead.runtime.links import open_channels
from fairlead.runtime.network.measuring import MOST_S, NetworkReport, measure
from fairlead.runtime.network.slow_links import SlowLink

MOST_ROUNDS = 1_000
MOST_NAMED = 20
LEAST_NODES = 4
"""With fewer there is one pair in each round, and nothing to compare it with."""


def main() -> int:
    """Measure, let rank 0 print what is slow, and return 1 there if anything is."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.runtime.network", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="pairs of each node (default 6)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each direction of a pair (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if not 1 <= arguments.rounds <= MOST_ROUNDS:
        parser.error(f"--rounds {arguments.rounds}: give 1 to {MOST_ROUNDS}")
    if not 0.0 < arguments.seconds <= MOST_S:
        parser.error(f"--seconds {arguments.seconds:g}: give more than 0 and at most {MOST_S:g}")
    environment = read_environment(os.environ)
    if environment.world_size // environment.local_size < 2:
        print(
            "network: this run has one node, and a network lies between two; give the spec `nodes: 2` or more, and "
            "start it by `fairlead run`",
            file=sys.stderr,
        )
        return 2
    try:
        (channel,) = open_channels(environment, ["network"], purpose="agree")
        report = measure(channel, environment, os.environ, num_rounds=arguments.rounds, seconds=arguments.seconds)
        channel.close()
    except (AgreementFailed, Misuse, OSError) as error:
        print(f"network: {error}", file=sys.stderr)
        return 2
    if environment.rank != 0:
        return 0
    print(json.dumps(as_data(report)) if arguments.json else "\n".join(sentences(report)), flush=True)
    return 0 if report.is_fine else 1


def sentences(report: NetworkReport) -> list[str]:
    """Return what rank 0 prints, the verdict last."""
    lines = [
        f"{report.num_nodes} nodes, {report.num_rounds} rounds: a median of {report.median_gb_s:.3g} GB/s between two"
    ]
    for first, second in report.unreachable[:MOST_NAMED]:
        lines.append(f"{first} and {second}: no measurement, as one cannot reach the other")
    lines += [
        f"{_where(link, report)} {link.factor:.3g} times as slow as that of the others, in {link.num_slow} of "
        f"{link.num_pairs} pairs"
        for link in report.slow[:MOST_NAMED]
    ]
    hidden = max(0, len(report.unreachable) - MOST_NAMED) + max(0, len(report.slow) - MOST_NAMED)
    if hidden:
        lines.append(f"{hidden} more")
    if report.is_fine and report.num_nodes < LEAST_NODES:
        lines.append(f"Of {report.num_nodes} nodes nobody can say which is slow; measure {LEAST_NODES} or more.")
    elif report.is_fine:
        lines.append("No node is slower than the others.")
    return lines


def _where(link: SlowLink, report: NetworkReport) -> str:
    """Return the beginning of the sentence on a slow component."""
    if link.node is not None:
        return f"{link.node}: its network is"
    siblings = [path for path in report.domains if path[:-1] == link.domain[:-1] and len(path) == len(link.domain)]
    if len(siblings) == 2:  # every pair uses the uplinks of both
        return f"{' and '.join(path[-1] for path in siblings)}: the network between them is"
    return f"{', '.join(link.domain)}: its uplink is"


def as_data(report: NetworkReport) -> dict[str, object]:
    """Return the report as JSON has it."""
    return {
        "nodes": report.num_nodes,
        "rounds": report.num_rounds,
        "median_gb_s": report.median_gb_s,
        "slow": [
            {
                "node": link.node,
                "domain": list(link.domain),
                "factor": link.factor,
                "num_slow": link.num_slow,
                "num_pairs": link.num_pairs,
            }
            for link in report.slow
        ],
        "unreachable": [list(pair) for pair in report.unreachable],
    }


if __name__ == "__main__":
    sys.exit(main())
