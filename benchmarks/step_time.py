"""Time of a training step as measured by others, beside the estimate of formulas that were not fitted to it.

    python -m benchmarks.step_time [--data DIR] [--json] [--fit]

`strategy/vtrain_multi_node.csv`: GPT of three sizes on 64, 256 and 512 A100 under Megatron-DeepSpeed (vTrain). Each
size is estimated with coefficients fitted to the other two. `strategy/vtrain_single_node.csv`: vTrain's own simulation
of up to 8 GPUs; each fifth of the rows is estimated from the other four, corrected by those of the same layer shape.
`fold` says what was left out.

`picks`: how much longer the split chosen by the estimates takes than the best that was measured. `--fit` prints the
table of coefficients from all rows, as in `fairlead.policy.strategy.gpus`.
"""

import argparse
import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fairlead.policy.strategy.corrections import factor
from fairlead.policy.strategy.gpus import MEASURED, TEXTBOOK, Coefficients
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.step_time import MEGATRON_2021, step_time
from fairlead.policy.strategy.transformer import Transformer

DATA = Path(__file__).parents[2] / "shared" / "traces"
MULTI, SINGLE = "vtrain_multi_node.csv", "vtrain_single_node.csv"
FOLDS = 5
VOCABULARY = 51_200
# What measured steps say little about stays as it is in the textbook.
FITTED = (
    "tflops", "depth", "hidden_passes", "whole", "attention_passes", "launch_ms", "launch_tensor_ms", "fallback_ms",
    "slot_ms", "optimizer_bytes", "network_gb_s",
)  # fmt: skip
WITHIN_NODE = (*FITTED[:-1], "link_gb_s", "latency_ms", "logits_passes")
# Standard deviation of errors, in logarithms, beyond which a row counts less; and of coefficients around the textbook.
ROBUST, PRIOR = 0.05, 1.0
STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured step."""

    file: str
    row: int
    model: Transformer
    split: Split
    measured_ms: float

    @property
    def size(self) -> tuple[int, int]:
        """Of the model: layers and hidden."""
        return self.model.layers, self.model.hidden

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of a layer on a GPU."""
        return self.model.hidden, self.model.sequence, self.split.tensor, self.split.micro_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A step and its estimate, from a fit that had not seen its ``fold``."""

    file: str
    row: int
    measured_ms: float
    estimated_ms: float
    fold: str

    @property
    def error(self) -> float:
        """In percent."""
        return 100 * (self.estimated_ms / self.measured_ms - 1)


def main() -> int:
    """Print each row, the errors and what picking by them costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true", help="one object a row")
    parser.add_argument("--fit", action="store_true", help="print the coefficients that fit all rows of several nodes")
    arguments = parser.parse_args()
    multi, single = (list(read(arguments.data / "strategy" / name)) for name in (MULTI, SINGLE))
    if not multi and not single:
        print(f"error: {arguments.data} has none of the tables; give their directory with --data", file=sys.stderr)
        return 2
    if arguments.fit:
        print(fit(multi, FITTED, "88 steps on 64 to 512 A100 (vTrain)"))
        return 0
    results = [*by_size(multi), *by_fifth(single)]
    for each in results:
        if arguments.json:
            print(json.dumps(asdict(each)))
    if not arguments.json:
        _print_summary(results, {(row.file, row.row): row for row in (*multi, *single)})
    return 0


def read(path: Path) -> Iterator[Row]:
    """The rows of one of vTrain's tables; none where it is absent."""
    if not path.exists():
        return
    with path.open() as file:
        for number, cells in enumerate(list(csv.reader(file))[1:], 1):
            values = [float(cell) for cell in cells]
            # The table of several nodes begins with the billions of parameters.
            _, batch, micro, hidden, heads, layers, sequence, tensor, data, pipeline = map(int, values[-11:-1])
            yield Row(
                file=path.name,
                row=number,
                model=Transformer(
                    layers=layers, hidden=hidden, heads=heads, key_value_heads=heads, head=hidden // heads,
                    width=4 * hidden, vocabulary=VOCABULARY, sequence=sequence, gated=False, biases=True,
                ),
                split=Split(
                    data=data, tensor=tensor, pipeline=pipeline, micro_batch=micro,
                    micro_batches=max(1, batch // (data * micro)), recompute=Recompute.FULL,
                ),
                measured_ms=values[-1],
            )  # fmt: skip


def estimate(row: Row, on: Coefficients) -> float:
    """Milliseconds of a step."""
    return step_time(row.model, row.split, on, software=MEGATRON_2021).total


def by_size(rows: Sequence[Row]) -> Iterator[Result]:
    """Each size from the other sizes; from the table where there is no other."""
    for size in dict.fromkeys(row.size for row in rows):
        seen = [row for row in rows if row.size != size]
        on = fit(seen, FITTED, "the other sizes") if seen else MEASURED["A100"]
        fold = f"without {size[0]} layers of {size[1]}" if seen else "table"
        for row in rows:
            if row.size == size:
                yield _result(row, estimate(row, on), fold)


def by_fifth(rows: Sequence[Row]) -> Iterator[Result]:
    """Each fifth from the other four, corrected by their steps of the same layer shape."""
    for part in range(FOLDS):
        seen = [row for row in rows if row.row % FOLDS != part]
        if not seen:
            continue
        on = fit(seen, WITHIN_NODE, "the other rows")
        by_shape = defaultdict(list)
        for row in seen:
            by_shape[row.shape].append((row.measured_ms, estimate(row, on)))
        for row in rows:
            if row.row % FOLDS == part:
                yield _result(row, estimate(row, on) * factor(by_shape[row.shape]), f"without fifth {part}")


def _result(row: Row, estimated_ms: float, fold: str) -> Result:
    return Result(file=row.file, row=row.row, measured_ms=row.measured_ms, estimated_ms=estimated_ms, fold=fold)


def fit(rows: Sequence[Row], names: Sequence[str], source: str) -> Coefficients:
    """Fit logarithms of coefficients to those of times, by Gauss and Newton from the textbook, which is the prior."""
    start = np.log([getattr(TEXTBOOK, name) for name in names])
    at = start.copy()

    def made(values: np.ndarray) -> Coefficients:
        return replace(TEXTBOOK, **dict(zip(names, map(float, np.exp(values)), strict=True)), source=source)

    def errors(values: np.ndarray) -> np.ndarray:
        on = made(values)
        return np.array([math.log(estimate(row, on) / row.measured_ms) for row in rows])

    for _ in range(STEPS):
        now = errors(at)
        slopes = np.empty((len(rows), len(names)))
        for column in range(len(names)):
            moved = at.copy()
            moved[column] += 1e-3
            slopes[:, column] = (errors(moved) - now) / 1e-3
        weights = (1 + (now / ROBUST) ** 2) ** -0.25
        matrix = np.vstack([slopes * weights[:, None], PRIOR * np.eye(len(names))])
        target = np.concatenate([-now * weights, PRIOR * (start - at)])
        at = at + np.clip(np.linalg.lstsq(matrix, target, rcond=None)[0], -0.5, 0.5)
    return made(at)


def _print_summary(results: Iterable[Result], rows: dict[tuple[str, int], Row]) -> None:
    by_file = defaultdict(list)
    for each in results:
        by_file[each.file].append(each)
    for file, found in by_file.items():
        errors = [each.error for each in found]
        middle = statistics.median(map(abs, errors))
        print(
            f"{file}: {len(found)} rows, mean error {statistics.fmean(map(abs, errors)):.2f} %, median {middle:.2f} %"
        )
        ratios = sorted(each.measured_ms / each.estimated_ms for each in found)
        low, high = (ratios[int(part * (len(ratios) - 1))] for part in (0.05, 0.95))
        print(f"  measured over estimated: nine in ten between {low:.2f} and {high:.2f}")
        if file == MULTI:
            picks = []
            for size in dict.fromkeys(rows[file, each.row].size for each in found):
                group = [each for each in found if rows[file, each.row].size == size]
                chosen = min(group, key=lambda each: each.estimated_ms).measured_ms
                picks.append(100 * (chosen / min(each.measured_ms for each in group) - 1))
            print(f"  picks: {', '.join(f'{each:.1f}' for each in picks)} %, mean {statistics.fmean(picks):.2f} %")


if __name__ == "__main__":
    sys.exit(main())
