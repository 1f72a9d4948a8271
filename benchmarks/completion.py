"""Job completion times on Muri's traces: Fairlead beside other schedulers, replayed by one set of rules.

    python -m benchmarks.completion --data DIR [--traces trace1,trace3] [--sharing off|on]
        [--policies fairlead,srtf,srsf,tiresias-l,muri-s] [--estimates known|noisy|learnt] [--json]
    python -m benchmarks.completion --policies production,production-shortest,production-preempting

DIR holds trace1.csv, trace1_pr.csv, trace3.csv, trace3_pr.csv and published.csv: the traces of the Muri artifact
(Rivendile/Muri, simulator/trace-data, Apache-2.0). With ``--json`` one object a line; else a table beside the
published figures. Both accounts of what preemption costs are in benchmarks/baselines/replay.py. Of Muri, Themis and
AntMan the published figures are printed; they are not replayed. The policies named production are not replayed either:
they are the whole loop of production on the simulated cluster (benchmarks/production.py), minutes for a trace, and only
run when they are named.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.baselines import estimators
from benchmarks.baselines.muri import PUBLISHED_AS, TRACES, Figures, Submitted, read_published, read_trace
from benchmarks.baselines.orders import srsf, srtf
from benchmarks.baselines.replay import Account, Answer, Policy, replay
from benchmarks.baselines.tiresias import tiresias_l
from benchmarks.data import folder_of
from benchmarks.production import RULES, SHARES, in_production
from fairlead.policy.gpu.stage_interleaving import speeds
from fairlead.policy.selection.grouping import Grouping
from fairlead.policy.selection.jobs import Job
from fairlead.policy.selection.knapsack import choose


def fairlead(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
    """The default policy, nobody sharing."""
    return Answer(groups=choose(queue, num_gpus))


def fairlead_sharing(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
    """The default policy, with the same settings, where jobs may share."""
    return Answer(groups=choose(queue, num_gpus, Grouping(speeds)))


ALONE: dict[str, Callable[[], Policy]] = {
    "fairlead": lambda: fairlead,
    "srtf": srtf,
    "srsf": srsf,
    "tiresias-l": tiresias_l,
}
SHARING: dict[str, Callable[[], Policy]] = {"fairlead": lambda: fairlead_sharing}
DEFAULT_DATA = Path("../shared/traces/muri")


def main() -> None:
    """Parse, replay, print."""
    arguments = _parse()
    published = read_published(arguments.data)
    accounts = [Account(arguments.account)] if arguments.account else list(Account)
    if arguments.json:
        accounts = accounts[:1]
    else:
        print(f"{'trace':<11}{'policy':<23}{'account':<11}{'average s':>12}{'99th s':>13}{'makespan s':>13}", end="")
        print(f"{'published':>12}")
    for name in arguments.traces:
        trace = read_trace(arguments.data, name)
        for policy in arguments.policies:
            known = published.get((policy, name))
            if policy in RULES:
                _in_production(arguments, policy, name, trace)
                continue
            if policy not in ALONE:
                if known is not None:
                    _print(arguments, name, policy, "table", 0, known, known)
                continue
            for account in accounts:
                for seed in range(arguments.seeds if arguments.estimates == "noisy" else 1):
                    figures = _replay(arguments, policy, trace, account, seed)
                    _print(arguments, name, policy, account.value, seed, figures, known)


def _replay(
    arguments: argparse.Namespace, policy: str, trace: Sequence[Submitted], account: Account, seed: int
) -> Figures:
    """Figures of one replay; its processor time goes to stderr."""
    make = (ALONE | SHARING if arguments.sharing == "on" else ALONE)[policy]
    started = time.process_time()
    estimator = estimators.make(arguments.estimates, seed)
    figures = replay(trace, make(), account=account, estimator=estimator)
    print(f"{policy}: {time.process_time() - started:.1f} s of processor time", file=sys.stderr)
    return figures


def _in_production(arguments: argparse.Namespace, policy: str, name: str, trace: Sequence[Submitted]) -> None:
    for seed in range(arguments.seeds if arguments.estimates == "noisy" else 1):
        started = time.process_time()
        figures = in_production(trace, policy, estimates=arguments.estimates, seed=seed)
        print(f"{policy}: {time.process_time() - started:.1f} s of processor time", file=sys.stderr)
        _print(arguments, name, policy, Account.RESUMED.value, seed, figures, None)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=folder_of("muri"), default=DEFAULT_DATA, help="folder of the traces")
    parser.add_argument("--traces", type=lambda text: text.split(","), default=list(TRACES))
    parser.add_argument("--sharing", choices=("off", "on"), default="off", help="whether jobs of ours may share")
    parser.add_argument(
        "--policies", type=_names((*ALONE, *PUBLISHED_AS, *RULES)), default=[*ALONE, "muri-s", "muri-l"]
    )
    parser.add_argument("--account", choices=[item.value for item in Account], help="default: both, JSON: published")
    parser.add_argument("--estimates", choices=("known", "noisy", "learnt"), default="known")
    parser.add_argument("--seeds", type=int, default=3, help="draws of noisy estimates (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args()
    missing = [name for name in arguments.traces if not (arguments.data / f"{name}.csv").exists()]
    if missing:
        parser.error(f"there is no {missing[0]}.csv in {arguments.data}; --help says where the traces come from")
    return arguments


def _names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(dict.fromkeys(allowed))}")
        return names

    return parse


def _print(
    arguments: argparse.Namespace,
    trace: str,
    policy: str,
    account: str,
    seed: int,
    figures: Figures,
    published: Figures | None,
) -> None:
    """A line; the account ``table`` is for figures that were published and not replayed."""
    if arguments.json:
        row = {
            "trace": trace,
            "sharing": "on" if policy == SHARES else arguments.sharing,
            "policy": policy,
            "average_jct_s": round(figures.average_jct_s, 3),
            "p99_jct_s": round(figures.p99_jct_s, 3),
            "makespan_s": round(figures.makespan_s, 3),
            "account": account,
            "estimates": arguments.estimates,
            "seed": seed,
        }
        print(json.dumps(row), flush=True)
        return
    beside = "" if published is None else f"{published.average_jct_s:>12,.0f}"
    print(
        f"{trace:<11}{policy:<23}{account:<11}{figures.average_jct_s:>12,.0f}{figures.p99_jct_s:>13,.0f}"
        f"{figures.makespan_s:>13,.0f}{beside}",
        flush=True,
    )


if __name__ == "__main__":
    main()
