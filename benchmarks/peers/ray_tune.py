"""Trials in Ray Tune, one after another: `ray_tune.py BEGAN TRIALS MORE`.

BEGAN is when the command was given, in Unix seconds. Trials are chosen by Optuna's TPE, which knows TRIALS results;
MORE are run, each in an actor of its own, which is Ray's default. A trial tells one value, as those of ours do. Prints
the seconds from the command to the first line of the first trial, and the median milliseconds from the end of a trial's
program to the first line of the next one's.
"""

import math
import os
import random
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_CHDIR_TO_TRIAL_DIR": "0"}

import ray
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

began, known, more = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
place = Path.cwd() / "times"


def train(config: dict[str, float]) -> None:
    start = time.time()
    tune.report({"loss": 1.0 + config["lr"]})
    with place.open("a") as file:
        file.write(f"{start} {time.time()}\n")


rng = random.Random(0)
points = [
    {"lr": 10 ** rng.uniform(-3, 1), "width": rng.randint(4, 64), "decay": 10 ** rng.uniform(-6, -2)}
    for _ in range(known)
]
# A socket's path has to be short.
with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as temporary:
    ray.init(
        num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR",
        log_to_driver=False, _temp_dir=temporary, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    space = {"lr": tune.loguniform(1e-3, 1e1), "width": tune.randint(4, 65), "decay": tune.loguniform(1e-6, 1e-2)}
    kept = {"points_to_evaluate": points, "evaluated_rewards": [1 + math.sin(number) for number in range(known)]}
    search = OptunaSearch(space, metric="loss", mode="min", seed=0, **(kept if known else {}))
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        tune_config=tune.TuneConfig(
            num_samples=more, metric="loss", mode="min", search_alg=ConcurrencyLimiter(search, max_concurrent=1)
        ),
        run_config=tune.RunConfig(storage_path=str(Path.cwd() / "results"), verbose=0),
    )
    tuner.fit()
    ray.shutdown()
times = [tuple(map(float, line.split())) for line in place.read_text().splitlines()]
gaps = [1e3 * (start - end) for (_, end), (start, _) in pairwise(times)]
print(f"{times[0][0] - began:.2f} {statistics.median(gaps):.0f}")
