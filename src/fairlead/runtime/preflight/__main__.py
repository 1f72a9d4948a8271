"""Tests the nodes of a gang before its program starts; a pod's supervising process starts it, once in each pod.

It ends with 0 when no node is named. If this pod's node is, it ends with 3 for a slow one and 4 for one that computes
wrongly, and its last line is the reason. Where only other nodes are named it waits to be stopped, since the gang starts
anew without them. `FAIRLEAD_PREFLIGHT` has the seconds of each test, and the steps of that of the loss, as JSON.

With `--network SECONDS` or `--gpu SECONDS` it is the program of a run, as `fairlead doctor` starts it: all pods end,
and rank 0 prints the result as one line of JSON.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fairlead.runtime.channels import Channel
from fairlead.runtime.environment import Environment, read_environment
from fairlead.runtime.errors import AgreementFailed, Misuse
from fairlead.runtime.links import open_channels
from fairlead.runtime.network.__main__ import LEAST_NODES, sentences
from fairlead.runtime.network.__main__ import as_data as network_data
from fairlead.runtime.network.measuring import NetworkReport, measure, node_of
from fairlead.runtime.preflight.first_steps import LossResult, odd_devices, train
from fairlead.runtime.preflight.gpu_burn import BurnResult, burn, slow_gpus
from fairlead.untrusted_json import parse_object

MOST_SETTINGS = 1024
NUM_ROUNDS = 6
MOST_SECONDS = 1.0
USED_SHARE = 0.8
"""The share of the time in which data is sent; the rest is for connecting."""
SLOW, FAULTY = 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """The reason why a pod's node is not to be used.

    Attributes:
        code: ``SLOW`` or ``FAULTY``, as the program ends there.
        says: A clause about the node.
    """

    code: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """The results of the tests, the same in all pods.

    Attributes:
        verdicts: Why nodes are not to be used, by pod.
        network: The rates between nodes; None if nothing was measured.
        gpus: The results of all GPUs, with their pods.
    """

    verdicts: Mapping[int, NodeVerdict]
    network: NetworkReport | None = None
    gpus: list[tuple[int, BurnResult]]


def main() -> int:
    """Test, and return the exit code of this pod."""
    if len(sys.argv) > 1:
        return _report()
    try:
        settings = parse_object(os.environ.get("FAIRLEAD_PREFLIGHT", ""), max_bytes=MOST_SETTINGS)
        environment = of_pod(read_environment(os.environ))
    except (ValueError, Misuse) as error:
        print(f"no test: {error}", file=sys.stderr)
        return 2
    try:
        (channel,) = open_channels(environment, ["preflight"], purpose="preflight")
        verdicts = test(channel, environment, os.environ, settings).verdicts
        channel.close()
    except ImportError as error:
        print(f"preflight.gpu and preflight.loss need torch in the Python of `run`: {error}", file=sys.stderr)
        return 2
    except (AgreementFailed, Misuse, OSError) as error:
        # Its ranks are to find out whether they reach each other; they have their own time for it.
        print(f"The nodes could not be tested, so the program starts as it is: {error}", flush=True)
        return 0
    own = verdicts.get(environment.rank)
    if own is not None:
        print(own.says, flush=True)
        return own.code
    if verdicts:
        pods = ", ".join(map(str, sorted(verdicts)))
        print(f"The gang starts anew, as its test names the nodes of other pods: {pods}.", flush=True)
        while True:
            signal.pause()
    return 0


def _report() -> int:
    """Test by hand, let rank 0 print the result, and return 0 unless the test itself failed."""
    parser = argparse.ArgumentParser(prog="python -m fairlead.runtime.preflight")
    parser.add_argument("--network", type=float, help="seconds for measuring between pairs of nodes")
    parser.add_argument("--gpu", type=float, help="seconds for multiplying matrices on all GPUs")
    options = parser.parse_args()
    try:
        environment = of_pod(read_environment(os.environ))
        (channel,) = open_channels(environment, ["preflight"], purpose="preflight")
        nodes = channel.gather(node_of(os.environ))
        result = test(channel, environment, os.environ, {"network_s": options.network, "gpu_s": options.gpu})
        channel.gather(None)  # nobody ends before all have the result
        channel.close()
    except (AgreementFailed, ImportError, Misuse, OSError) as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 2
    if environment.rank == 0:
        print(json.dumps(as_data(result, [str(node) for node in nodes])), flush=True)
    return 0


def as_data(result: PreflightResult, nodes: list[str]) -> dict[str, object]:
    """Return the result as JSON has it.

    Args:
        nodes: The node of each pod.
    """
    names = {SLOW: "slow", FAULTY: "faulty"}
    rows = [(node, result.verdicts.get(pod)) for pod, node in enumerate(nodes)]
    return {
        "nodes": [
            {"node": node, "verdict": None, "says": None}
            if verdict is None
            else {"node": node, "verdict": names[verdict.code], "says": verdict.says}
            for node, verdict in rows
        ],
        "network": None if result.network is None else network_data(result.network),
        "gpus": [{"node": nodes[pod], **asdict(burnt)} for pod, burnt in result.gpus],
    }


def of_pod(environment: Environment) -> Environment:
    """Return the environment of a gang with one rank in each pod."""
    num_pods = environment.world_size // environment.local_size
    return replace(environment, rank=environment.node, world_size=num_pods, local_rank=0, local_size=1)


def test(
    channel: Channel, environment: Environment, environ: Mapping[str, str], settings: Mapping[str, Any]
) -> PreflightResult:
    """Test and return the same result in all pods. Collective.

    Args:
        settings: The seconds ``network_s`` and ``gpu_s`` and the number ``loss_steps``, of which some may be absent.

    Raises:
        AgreementFailed: A pod is gone.
        ImportError: Torch is not there.
    """
    verdicts: dict[int, NodeVerdict] = {}
    report, gpus = None, list[tuple[int, BurnResult]]()
    if settings.get("network_s") is not None and channel.world_size > 1:
        report, slow = _test_network(channel, environment, environ, float(settings["network_s"]))
        verdicts |= slow
    if settings.get("gpu_s") is not None:
        gpus, bad = _test_gpus(channel, float(settings["gpu_s"]))
        verdicts |= bad
    if settings.get("loss_steps") is not None:
        verdicts |= _test_loss(channel, int(settings["loss_steps"]))
    return PreflightResult(verdicts=verdicts, network=report, gpus=gpus)


def _test_network(
    channel: Channel, environment: Environment, environ: Mapping[str, str], within_s: float
) -> tuple[NetworkReport | None, dict[int, NodeVerdict]]:
    nodes = [str(name) for name in channel.gather(node_of(environ))]
    first = {name: nodes.index(name) for name in nodes}  # of several pods on one node one measures
    if len(first) < 2:
        if environment.rank == 0:
            print("network: all pods are on one node, so there is no link to measure", flush=True)
        return None, {}
    report = measure(
        channel,
        environment,
        environ,
        num_rounds=NUM_ROUNDS,
        seconds=min(MOST_SECONDS, within_s * USED_SHARE / (2 * NUM_ROUNDS)),
        most_s=within_s,
        takes_part=first[nodes[environment.rank]] == environment.rank,
    )
    if environment.rank == 0:
        print("\n".join(f"network: {line}" for line in sentences(report)), flush=True)
    by_node = network_verdicts(report)
    return report, {pod: by_node[first[node]] for pod, node in enumerate(nodes) if first[node] in by_node}


def network_verdicts(report: NetworkReport) -> dict[int, NodeVerdict]:
    """Return the verdicts on slow and unreachable nodes, by the pod that measured."""
    verdicts = {
        report.pods[link.node]: NodeVerdict(
            code=SLOW,
            says=f"its network is {link.factor:.3g} times as slow as that of the others, in {link.num_slow} of "
            f"{link.num_pairs} pairs",
        )
        for link in report.slow
        if link.node is not None
    }
    if report.num_nodes >= LEAST_NODES:
        verdicts |= {
            report.pods[node]: NodeVerdict(code=SLOW, says="no other node can exchange data with it")
            for node in report.cut_off
        }
    return verdicts


def _test_gpus(channel: Channel, seconds: float) -> tuple[list[tuple[int, BurnResult]], dict[int, NodeVerdict]]:
    problem: str | None = None
    own: list[BurnResult] = []
    try:
        own = burn(seconds)
    except RuntimeError as error:  # of torch: no GPU, or one that fails at work
        problem = _first_line(error)
    rows = channel.gather([problem, [asdict(result) for result in own]])
    results = [(pod, BurnResult(**fields)) for pod, (_, burnt) in enumerate(rows) for fields in burnt]
    if channel.rank == 0:
        print("\n".join(f"gpu: {line}" for line in gpu_lines(results)), flush=True)
    failed = {pod: str(row[0]) for pod, row in enumerate(rows) if row[0] is not None}
    return results, gpu_verdicts(results, failed)


def _test_loss(channel: Channel, num_steps: int) -> dict[int, NodeVerdict]:
    problem: str | None = None
    own: list[LossResult] = []
    try:
        own = train(num_steps)
    except RuntimeError as error:  # of torch: a GPU that fails at work
        problem = _first_line(error)
    rows = channel.gather([problem, [asdict(result) for result in own]])
    results = [(pod, LossResult(**fields)) for pod, (_, trained) in enumerate(rows) for fields in trained]
    if channel.rank == 0:
        print("\n".join(f"loss: {line}" for line in loss_lines(results)), flush=True)
    failed = {pod: str(row[0]) for pod, row in enumerate(rows) if row[0] is not None}
    return loss_verdicts(results, failed)


def loss_verdicts(results: list[tuple[int, LossResult]], failed: Mapping[int, str]) -> dict[int, NodeVerdict]:
    """Return the verdicts on nodes whose devices come to another loss than others of their kind, by pod.

    Args:
        results: The results of all devices, with their pods.
        failed: Why devices could not be tested, by pod.
    """
    odd = odd_devices(results)
    verdicts = {
        pod: NodeVerdict(code=FAULTY, says=f"its device {device} {says}") for (pod, device), says in odd.items()
    }
    return verdicts | {pod: NodeVerdict(code=FAULTY, says=f"its devices fail: {why}") for pod, why in failed.items()}


def loss_lines(results: list[tuple[int, LossResult]]) -> list[str]:
    """Return what rank 0 prints: a line for each kind of device."""
    lines = []
    for kind in sorted({result.kind for _, result in results}):
        last = [result.losses[-1] for _, result in results if result.kind == kind]
        differing = "" if len(set(last)) == 1 else f", and {len(set(last)) - 1} other"
        lines.append(f"{len(last)} of {kind}: {last[0]} after {len(results[0][1].losses)} steps{differing}")
    return lines or ["no device was tested"]


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().splitlines()[0][:200] or type(error).__name__


def gpu_verdicts(results: list[tuple[int, BurnResult]], failed: Mapping[int, str]) -> dict[int, NodeVerdict]:
    """Return the verdicts on nodes of slow and faulty GPUs, by pod.

    Args:
        results: The results of all GPUs, with their pods.
        failed: Why GPUs could not be tested, by pod.
    """
    verdicts = {
        pod: NodeVerdict(
            code=SLOW,
            says=f"its GPU {device} takes {factor:.3g} times as long for a product as the others of its model",
        )
        for (pod, device), factor in slow_gpus(results).items()
    }
    for pod, result in results:
        if result.num_wrong:
            says = f"its GPU {result.device} gave {result.num_wrong} wrong products of {result.num_products}"
            verdicts[pod] = NodeVerdict(code=FAULTY, says=says)
    verdicts |= {pod: NodeVerdict(code=FAULTY, says=f"its GPUs fail: {why}") for pod, why in failed.items()}
    return verdicts


def gpu_lines(results: list[tuple[int, BurnResult]]) -> list[str]:
    """Return what rank 0 prints: a line for each model of GPUs."""
    lines = []
    for model in sorted({result.model for _, result in results}):
        rates = sorted(result.tflops for _, result in results if result.model == model)
        num_products = sum(result.num_products for _, result in results if result.model == model)
        span = f"{rates[0]:.3g} to {rates[-1]:.3g} TFLOP/s"
        lines.append(f"{len(rates)} of {model}: {span}, {num_products} products checked")
    return lines or ["no GPU was tested"]


if __name__ == "__main__":
    sys.exit(main())
