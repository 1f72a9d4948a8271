"""Job completion times on Muri's traces: ours beside other schedulers, replayed by one set of rules.

    python -m benchmarks.completion --data DIR [--traces trace1,trace3] [--sharing off|on] [--policies fairlead,srsf]

DIR holds trace1.csv, trace1_pr.csv, trace3.csv, trace3_pr.csv and published.csv: the traces of the Muri artifact
(Rivendile/Muri, simulator/trace-data, Apache-2.0). With ``--json`` one object a line; else a table beside the
published figures.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.baselines import estimators
from benchmarks.baselines.muri import TRACES, Figures, read_published, read_trace
from benchmarks.baselines.orders import srsf, srtf
from benchmarks.baselines.replay import Account, Answer, Policy, replay
from benchmarks.baselines.tiresias import tiresias_l
from fairlead.policy.jobs import Job
from fairlead.policy.queueing import choose


def fairlead(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
    """The default policy, nobody sharing."""
    return Answer(groups=choose(queue, num_gpus, sharing=False))


def fairlead_sharing(queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
    """The default policy, with the same settings, where jobs may share."""
    return Answer(groups=choose(queue, num_gpus, sharing=True))


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
    if not arguments.json:
        print(
            f"{'trace':<11}{'sharing':<9}{'policy':<13}{'account':<11}{'average':>11}{'p99':>13}{'makespan':>13}{'published':>11}"
        )
    for name in arguments.traces:
        trace = read_trace(arguments.data, name)
        for policy in arguments.policies:
            make = (SHARING if arguments.sharing == "on" else ALONE)[policy]
            for seed in range(arguments.seeds if arguments.estimates == "noisy" else 1):
                started = time.process_time()
                estimator = estimators.make(arguments.estimates, seed)
                figures = replay(trace, make(), account=Account(arguments.account), estimator=estimator)
                print(f"{name} {policy}: {time.process_time() - started:.1f} s", file=sys.stderr)
                _print(arguments, name, policy, seed, figures, published.get((policy, name)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=_folder, default=DEFAULT_DATA, help="folder of the traces")
    parser.add_argument("--traces", type=lambda text: text.split(","), default=list(TRACES))
    parser.add_argument("--sharing", choices=("off", "on"), default="off")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(ALONE))
    parser.add_argument("--account", choices=[item.value for item in Account], default=Account.PUBLISHED.value)
    parser.add_argument("--estimates", choices=("known", "noisy", "learnt"), default="known")
    parser.add_argument("--seeds", type=int, default=3, help="draws of noisy estimates (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    return parser.parse_args()


def _folder(text: str) -> Path:
    folder = Path(text)
    return folder if (folder / "trace1.csv").exists() else folder / "muri"


def _print(
    arguments: argparse.Namespace, trace: str, policy: str, seed: int, figures: Figures, published: Figures | None
) -> None:
    if arguments.json:
        row = {
            "trace": trace,
            "sharing": arguments.sharing,
            "policy": policy,
            "average_jct_s": round(figures.average_jct_s, 3),
            "p99_jct_s": round(figures.p99_jct_s, 3),
            "makespan_s": round(figures.makespan_s, 3),
            "account": arguments.account,
            "estimates": arguments.estimates,
            "seed": seed,
        }
        print(json.dumps(row), flush=True)
        return
    beside = "" if published is None else f"{published.average_jct_s:>11,.0f}"
    print(
        f"{trace:<11}{arguments.sharing:<9}{policy:<13}{arguments.account:<11}{figures.average_jct_s:>11,.0f}"
        f"{figures.p99_jct_s:>13,.0f}{figures.makespan_s:>13,.0f}{beside}",
        flush=True,
    )


if __name__ == "__main__":
    main()
