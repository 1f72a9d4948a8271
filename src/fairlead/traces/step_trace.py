"""Reads the operations of the steps of a distributed training from a file.

The format is the one that ByteDance's StragglerAnalysis publishes: Parquet, with a row for each operation.

See decision 215.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.policy.health.gang_times import OwnTimes
from fairlead.state.step_operations import StepOperations

MISSING = "A trace in Parquet needs one more package: `pip install 'fairlead[parquet]'`."
MOST_OPERATIONS = 20_000_000
COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "gmc")


def read_operations(path: Path) -> StepOperations:
    """Return the operations in a Parquet file.

    Raises:
        InvalidSpec: pyarrow is not installed, or the file is no such trace.
    """
    try:
        import numpy as np
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InvalidSpec((MISSING,)) from error
    try:
        file = parquet.ParquetFile(path)
        absent = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if absent:
            raise InvalidSpec((f"{path} has no column {', '.join(absent)}; it needs {', '.join(COLUMNS)}",))
        if file.metadata.num_rows > MOST_OPERATIONS:
            raise InvalidSpec(
                (f"{path} has {file.metadata.num_rows:,} operations; at most {MOST_OPERATIONS:,} are read",)
            )
        table = file.read(columns=list(COLUMNS))
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidSpec((f"{path} cannot be read as Parquet: {error}",)) from error
    if not table.num_rows:
        raise InvalidSpec((f"{path} has no operations",))
    empty = [name for name in COLUMNS if table[name].null_count]
    if empty:
        raise InvalidSpec(
            (f"{path} has rows without {', '.join(empty)}; each operation needs all of {', '.join(COLUMNS)}",)
        )
    kind = table["optype"].cast(pyarrow.string()).dictionary_encode().unify_dictionaries()
    kind = pyarrow.concat_arrays(kind.chunks)

    def column(name: str, dtype: Any) -> Any:
        # Not `to_numpy`, which imports pandas where it is installed: 1.5 s.
        return np.from_dlpack(pyarrow.concat_arrays(table[name].chunks)).astype(dtype)

    try:
        operations = _operations(column, kind)
    except (BufferError, TypeError, ValueError) as error:
        raise InvalidSpec((f"{path} has a column that is no number: {error}",)) from error
    if not np.isfinite(operations.start_s).all() or not (operations.duration_s >= 0).all():
        raise InvalidSpec((f"{path} has starts that are not finite, or negative durations",))
    if min(operations.data_rank.min(), operations.stage.min(), operations.number.min()) < 0:
        raise InvalidSpec((f"{path} has negative numbers of data ranks, stages or operations",))
    return operations


def operations_of_reports(reports: Mapping[int, OwnTimes]) -> StepOperations:
    """Return the steps that all ranks have reported, as computation, a wait for all, and the rest of the step.

    Args:
        reports: The own times of ranks 0 to N - 1.

    Raises:
        InvalidSpec: They have no step in common.
    """
    import numpy as np

    first = max(report.step - len(report.own_us) + 1 for report in reports.values())
    last = min(report.step for report in reports.values())
    if last < first:
        raise InvalidSpec(("the ranks have reported no step in common; try again in a second",))
    own_s = np.array([[reports[rank].own_us[step - reports[rank].step - 1] for step in range(first, last + 1)]
                      for rank in range(len(reports))]) / 1e6  # fmt: skip
    rest_s = max(float(np.mean([report.step_s for report in reports.values()]) - own_s.max(axis=0).mean()), 0.0)
    rank, step = (index.ravel() for index in np.indices(own_s.shape))
    num = own_s.size
    kinds = ("forward-compute", "optimizer-clip-main-grad", "optimizer")
    return StepOperations(
        data_rank=np.tile(rank, 3),
        stage=np.zeros(3 * num, np.int64),
        step=np.tile(step + first, 3),
        kind=np.repeat(np.arange(3), num),
        start_s=np.concatenate([np.zeros(num), own_s.ravel(), np.full(num, own_s.max())]),
        duration_s=np.concatenate([own_s.ravel(), (own_s.max(axis=0) - own_s).ravel(), np.full(num, rest_s)]),
        number=np.zeros(3 * num, np.int64),
        chunk=np.tile(np.repeat([0, -1, -1], num), 1),
        kinds=kinds,
    )


def _operations(column: Callable[[str, Any], Any], kind: Any) -> StepOperations:
    import numpy as np

    return StepOperations(
        data_rank=column("dp_rank", np.int64),
        stage=column("stage", np.int64),
        step=column("step", np.int64),
        kind=np.from_dlpack(kind.indices).astype(np.int64),
        start_s=column("start_ts", np.float64),
        duration_s=column("duration", np.float64),
        number=column("seq_id", np.int64),
        chunk=column("gmc", np.int64),
        kinds=tuple(str(name) for name in kind.dictionary.to_pylist()),
    )
