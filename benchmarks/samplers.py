"""The samplers of sweeps on functions with a known optimum: the distance of the best trial from it.

    python -m benchmarks.samplers [--trials 40] [--seeds 10] [--samplers random,tpe,cma-es,gp]

A narrow valley along a diagonal, Branin, Hartmann in six dimensions, and one with words, whole numbers, equal ratios
and a condition. Also the processor time of a decision at the end of such a sweep, and with 1,000 trials in store.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping

from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState
from fairlead.specs.search_space import Value
from fairlead.specs.sweep import Objective, Sampler, Sweep, Trial

TRIALS_IN_STORE = 1_000
# Hartmann's constants (Dixon and Szego, 1978).
WEIGHTS = (1.0, 1.2, 3.0, 3.2)
SHAPES = (
    (10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14),
)  # fmt: skip
CENTRES = (
    (1312, 1696, 5569, 124, 8283, 5886), (2329, 4135, 8307, 3736, 1004, 9991),
    (2348, 1451, 3522, 2883, 3047, 6650), (4047, 8828, 8732, 5743, 1091, 381),
)  # fmt: skip

Worth = Callable[[Mapping[str, Value]], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--samplers", default="random,tpe,cma-es,gp", help="with commas between them")
    arguments = parser.parse_args()
    samplers = [Sampler(name) for name in arguments.samplers.split(",")]
    print(f"best value beyond the optimum after {arguments.trials} trials, median (worst) of {arguments.seeds} seeds")
    print(f"{'':<12}" + "".join(f"{sampler:>20}" for sampler in samplers))
    for name, (worth, parameters) in FUNCTIONS.items():
        cells = []
        for sampler in samplers:
            bests = [search(sampler, parameters, worth, arguments.trials, seed) for seed in range(arguments.seeds)]
            cells.append(f"{statistics.median(bests):.4f} ({max(bests):.4f})")
        print(f"{name:<12}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
    for sampler in samplers:
        print(f"{sampler}: {decision_ms(sampler):.1f} ms of processor time for the next values after {TRIALS_IN_STORE}")


def search(sampler: Sampler, parameters: Mapping[str, str], worth: Worth, trials: int, seed: int) -> float:
    """The best value that one sweep finds."""
    spec = sweep(sampler, parameters, seed)
    history: list[TrialRecord] = []
    for number in range(trials):
        values = suggest(spec, number, history)
        history.append(record(number, values, worth(values)))
    return min(each.value or 0.0 for each in history)


def sweep(sampler: Sampler, parameters: Mapping[str, str], seed: int) -> Sweep:
    return Sweep(
        name="search", trial=Trial(run="true"), parameters=parameters, objective=Objective(metric="loss"), trials=9_999,
        sampler=sampler, seed=seed,
    )  # fmt: skip


def record(number: int, values: Mapping[str, Value], value: float) -> TrialRecord:
    return TrialRecord(number=number, values=values, state=TrialState.SUCCEEDED, value=value, step=1)


def decision_ms(sampler: Sampler) -> float:
    """Processor milliseconds of this thread for one decision."""
    worth, parameters = FUNCTIONS["hartmann"]
    plain = sweep(Sampler.RANDOM, parameters, 0)
    values = [suggest(plain, number, []) for number in range(TRIALS_IN_STORE)]
    history = [record(number, each, worth(each)) for number, each in enumerate(values)]
    spec = sweep(sampler, parameters, 0)
    suggest(spec, TRIALS_IN_STORE, history)
    took = []
    for number in range(5):
        began = time.thread_time()
        suggest(spec, TRIALS_IN_STORE + number, history)
        took.append(time.thread_time() - began)
    return 1e3 * statistics.median(took)


def valley(values: Mapping[str, Value]) -> float:
    """A narrow valley along the diagonal, to which no coordinate points by itself."""
    x, y, z = (float(values[f"x{place}"]) for place in range(3))
    return 100 * (x - y) ** 2 + 100 * (y - z) ** 2 + (x + y + z - 0.9) ** 2


def branin(values: Mapping[str, Value]) -> float:
    """Three valleys that are as deep as each other."""
    x, y = 15 * float(values["x0"]) - 5, 15 * float(values["x1"])
    bent = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bent**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def hartmann(values: Mapping[str, Value]) -> float:
    """Six dimensions, several valleys."""
    place = [float(values[f"x{dim}"]) for dim in range(6)]
    far = (
        sum(a * (x - 1e-4 * p) ** 2 for a, x, p in zip(shape, place, centre, strict=True))
        for shape, centre in zip(SHAPES, CENTRES, strict=True)
    )
    return 3.32237 - sum(weight * math.exp(-each) for weight, each in zip(WEIGHTS, far, strict=True))


def mixed(values: Mapping[str, Value]) -> float:
    """Equal ratios, a whole number, a word, and a parameter that is there with one of its values only."""
    loss = (math.log10(float(values["lr"])) + 2) ** 2 + 0.05 * abs(float(values["depth"]) - 4)
    loss += {"relu": 0.0, "tanh": 0.3, "gelu": 0.1}[str(values["act"])]
    return loss + (4 * (float(values["slope"]) - 0.1) ** 2 if "slope" in values else 0.0)


FUNCTIONS: dict[str, tuple[Worth, dict[str, str]]] = {
    "valley": (valley, {f"x{dim}": "0.0..1.0" for dim in range(3)}),
    "branin": (branin, {f"x{dim}": "0.0..1.0" for dim in range(2)}),
    "hartmann": (hartmann, {f"x{dim}": "0.0..1.0" for dim in range(6)}),
    "mixed": (
        mixed,
        {"lr": "log 1e-5..1e0", "depth": "1..8", "act": "relu | tanh | gelu", "slope": "0.0..0.5 when act=relu"},
    ),
}


if __name__ == "__main__":
    main()
