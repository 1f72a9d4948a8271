"""Optuna's bookkeeping between two trials, TPE, history in SQLite: `optuna_next.py TRIALS`.

Prints the median milliseconds, and those of the processor, to tell a result and to ask for the next values.
"""

import math
import random
import statistics
import sys
import time

import optuna

MORE = 12
SPACE = {
    "lr": optuna.distributions.FloatDistribution(1e-3, 1e1, log=True),
    "width": optuna.distributions.IntDistribution(4, 64),
    "decay": optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True),
}

optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(storage="sqlite:///study.db", sampler=optuna.samplers.TPESampler(seed=0))
rng = random.Random(0)
for number in range(int(sys.argv[1])):
    params = {"lr": 10 ** rng.uniform(-3, 1), "width": rng.randint(4, 64), "decay": 10 ** rng.uniform(-6, -2)}
    study.add_trial(optuna.trial.create_trial(params=params, distributions=SPACE, value=1 + math.sin(number)))
walls, cpus = [], []
trial = study.ask(SPACE)
for _ in range(MORE):
    trial.report(1.0, 1)
    began, before = time.perf_counter(), time.process_time()
    study.tell(trial, 1.0)
    trial = study.ask(SPACE)
    walls.append(time.perf_counter() - began)
    cpus.append(time.process_time() - before)
print(f"{1e3 * statistics.median(walls):.1f} {1e3 * statistics.median(cpus):.1f}")
