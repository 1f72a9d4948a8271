"""Writes costs as a Parquet file, for joins with other tables."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import ClusterError, InvalidSpec
from fairlead.ledger.usage import Use

MISSING = "A Parquet file needs one more package: `pip install 'fairlead[parquet]'`, or take --csv."


def write_costs(path: Path, rows: Sequence[Mapping[str, Any]], by: str) -> None:
    """Write the rows of ``fairlead cost`` with a column per use; the file is written atomically.

    Raises:
        InvalidSpec: pyarrow is not installed.
        ClusterError: The file cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InvalidSpec((MISSING,)) from error
    words = [by, *(["uid"] if by == "run" else [])]
    columns: dict[str, Any] = {name: arrow.array([row[name] for row in rows], arrow.string()) for name in words}
    columns["microusd"] = arrow.array([row["microusd"] for row in rows], arrow.int64())
    columns["node_hours"] = arrow.array([row["node_hours"] for row in rows], arrow.float64())
    for use in Use:
        columns[use.value] = arrow.array([row["uses"].get(use.value, 0) for row in rows], arrow.int64())
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        parquet.write_table(arrow.table(columns), temporary)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ClusterError(f"{path} cannot be written: {error}") from error
