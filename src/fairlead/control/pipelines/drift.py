"""Detects drift in a file, as a separate program: ``python -m fairlead.control.pipelines.drift PARENT < REQUEST``.

Files may be long and the libraries that compare them need much time and memory, so the supervisor does not load them.
The program ends with the supervisor, the process PARENT.
"""

import csv
import errno
import importlib.util
import io
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from fairlead.errors import Conflict, RuntimeFault
from fairlead.frozen import dataclass
from fairlead.policy.kinds.staleness import staleness
from fairlead.runtime.places import is_url, open_place, translated
from fairlead.runtime.processes import die_with_parent
from fairlead.specs.pipeline import Detector, Drift

# Extra with the package river, which requires scipy.
EXTRA = "drift"
# Minimum rows for a distribution to be compared.
FEWEST_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRequest:
    """A request to check for drift.

    Attributes:
        data, reference: Paths or URLs of objects.
        begin: Byte offset in ``data`` of the first row that counts; None for its end, so that no row counts yet.
        fresh: Mean loss of a fresh model as known before these rows; None if unknown.
        is_new: Whether the model is new since ``begin``.
    """

    data: str
    reference: str | None
    column: str | None
    cost: float | None
    detector: str | None
    window: int
    significance: float
    begin: int | None = 0
    fresh: float | None = None
    is_new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFinding:
    """The result of a check.

    Attributes:
        is_due: Whether to train.
        reason: Reason of the decision.
        begin: Byte offset of the first row that counts; 0 after the file was replaced by a shorter one.
        fresh: Mean loss of a fresh model, as known now.
        problem: Reason why the check failed; None if it succeeded.
    """

    is_due: bool = False
    reason: str = ""
    begin: int = 0
    fresh: float | None = None
    problem: str | None = None


def request_of(drift: Drift, base: Path, **state: Any) -> DriftRequest:
    """Return the request for a spec whose paths are relative to ``base``."""
    return DriftRequest(
        data=place_of(drift.data, base),
        reference=None if drift.reference is None else place_of(drift.reference, base),
        column=drift.column,
        cost=drift.cost,
        detector=drift.detector,
        window=drift.window,
        significance=drift.significance,
        **state,
    )


def place_of(data: str, base: Path) -> str:
    """Return the path or URL that a spec names."""
    return data if is_url(data) else str(base / Path(data.removeprefix("file://")).expanduser())


def check(name: str, drift: Drift, base: Path) -> None:
    """Refuse a spec whose drift cannot be detected here.

    Raises:
        Conflict: A file, a package or the column is missing.
    """
    if (problem := package_problem(drift)) is not None:
        raise Conflict(f"{name}: {problem}")
    wanted = request_of(drift, base)
    for key, path in (("data", wanted.data), ("reference", wanted.reference)):
        if path is not None and not Path(path).is_file():
            raise Conflict(f"{name}: on.drift.{key}: {path} does not exist or is no file.")
    finding = look(wanted)
    if finding.problem is not None:
        raise Conflict(f"{name}: on.drift: {finding.problem}")


def package_problem(drift: Drift) -> str | None:
    """Return which required package this Python lacks, as a sentence; None if it lacks none."""
    if not (drift.detector or drift.reference) or importlib.util.find_spec("river") is not None:
        return None
    return (
        f"on.drift.{'detector' if drift.detector else 'reference'} needs the package river, which is not installed "
        f"here; `pip install 'fairlead[{EXTRA}]'`, or give `column` and `cost`."
    )


def look(request: DriftRequest) -> DriftFinding:
    """Check the current content of the files for drift."""
    try:
        return _compared(request) if request.reference is not None else _judged(request)
    except OSError as error:
        return DriftFinding(problem=f"{error.filename or request.data}: {error.strerror or error}")
    except (ValueError, csv.Error, RuntimeFault) as error:
        return DriftFinding(problem=str(error))


def _judged(request: DriftRequest) -> DriftFinding:
    """Decide by a stream of losses."""
    assert request.column is not None, "a rule of the spec"
    rows = DataRows(request.data, request.begin)
    losses = list(rows.numbers(request.column))
    if request.cost is not None:
        now = staleness(losses, fresh=request.fresh, window=request.window, is_new=request.is_new)
        sentence = (
            f"staleness has cost {max(now.excess, 0.0):.4g} of {request.cost:g} ({request.column}) "
            f"in {len(losses)} predictions"
        )
        if now.fresh is None:
            sentence = (
                f"{len(losses)} of the {request.window} predictions that tell the loss of a fresh model are there"
            )
        due = now.fresh is not None and now.excess >= request.cost
        return DriftFinding(is_due=due, reason=sentence, begin=rows.begin, fresh=now.fresh)
    place = first_drift(Detector(request.detector or ""), losses)
    sentence = f"{request.detector} finds no drift of {request.column} in {len(losses)} predictions"
    if place is not None:
        sentence = f"{request.detector} finds that {request.column} has grown, at prediction {place} of {len(losses)}"
    return DriftFinding(is_due=place is not None, reason=sentence, begin=rows.begin)


def first_drift(detector: Detector, losses: Sequence[float]) -> int | None:
    """Return the number, from 1, of the prediction at which a detector finds larger losses; None without drift."""
    from river import drift

    if detector is Detector.HDDM_A:
        bits = drift.binary.HDDMA()
        for number, loss in enumerate(losses, 1):
            if loss not in (0.0, 1.0):
                raise ValueError(f"{Detector.HDDM_A} takes losses of 0 and 1, and prediction {number} has {loss:g}")
            bits.update(loss == 1.0)
            if bits.drift_detected:
                return number
        return None
    test = drift.ADWIN() if detector is Detector.ADWIN else drift.PageHinkley(mode="up")
    for number, loss in enumerate(losses, 1):
        before = test.estimation if isinstance(test, drift.ADWIN) else -math.inf
        test.update(loss)  # type: ignore[no-untyped-call]
        # ADWIN also detects a decrease of losses, which is no reason to train.
        if test.drift_detected and (not isinstance(test, drift.ADWIN) or test.estimation > before):
            return number
    return None


def _compared(request: DriftRequest) -> DriftFinding:
    """Compare two data sets column by column: two-sample Kolmogorov-Smirnov for numbers, chi-squared for words.

    With ``m`` columns each is tested at ``significance / m`` (Bonferroni).
    """
    assert request.reference is not None
    rows = DataRows(request.data, request.begin)
    old, new = _columns(DataRows(request.reference, 0)), _columns(rows)
    shared = [name for name in old if name in new]
    if not shared:
        raise ValueError(f"{request.data} and {request.reference} have no column in common")
    num_rows = {name: min(len(old[name]), len(new[name])) for name in shared}
    # A column with too few values is skipped.
    tested = [name for name in shared if num_rows[name] >= FEWEST_ROWS]
    if not tested:
        reason = f"{max(num_rows.values())} rows are there, of {FEWEST_ROWS} that a comparison takes"
        return DriftFinding(reason=reason, begin=rows.begin)
    chances = {name: _chance(old[name], new[name]) for name in tested}
    name = min(tested, key=lambda column: chances[column])
    due = chances[name] < request.significance / len(tested)
    reason = (
        f"{name} {'differs from' if due else 'is nearest to differing from'} {Path(request.reference).name} "
        f"(p = {chances[name]:.2g}; {len(tested)} columns, {len(new[name])} rows)"
    )
    return DriftFinding(is_due=due, reason=reason, begin=rows.begin)


def _chance(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the p-value: the probability of such a difference between two samples of one distribution."""
    from scipy import stats

    try:
        one, other = [float(text) for text in old], [float(text) for text in new]
    except ValueError:
        counted = [Counter(old), Counter(new)]
        words = sorted({*old, *new})
        if len(words) == 1:
            return 1.0
        counts = [[count[word] for word in words] for count in counted]
        return float(stats.chi2_contingency(counts).pvalue)
    return float(stats.ks_2samp(one, other).pvalue)


def _columns(rows: "DataRows") -> dict[str, list[str]]:
    """Return the values of each column without missing ones, which some programs write as NaN."""
    columns: dict[str, list[str]] = {name: [] for name in rows.names if name}
    for row in rows:
        for name, text in row.items():
            if text.lower() not in ("", "nan"):
                columns.setdefault(name, []).append(text)
    return columns


class DataRows:
    """Rows of a CSV file with a header, or of JSON lines; an incomplete last line is skipped.

    Attributes:
        begin: Byte offset of the rows; 0 if the file is shorter than the requested offset.
        names: Columns of the header; empty for JSON lines.
    """

    def __init__(self, place: str, begin: int | None) -> None:
        self.place = place
        with _opened(place) as file:
            size = file.seek(0, os.SEEK_END)
            self.begin = begin if begin is not None and begin <= size else 0
            file.seek(0)
            header = file.readline()
            self._is_json = header.lstrip()[:1] == b"{"
            if self.begin or self._is_json:
                file.seek(self.begin)
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            if begin is None:
                self.begin, whole = file.tell() - len(content) + len(whole), b""
        self.names = [] if self._is_json else next(csv.reader([header.decode("utf-8-sig", "replace")]), [])
        self._text = whole.decode("utf-8", "replace")

    def __iter__(self) -> Iterator[Mapping[str, str]]:
        if not self._is_json:
            rows = csv.DictReader(io.StringIO(self._text, newline=""), self.names, restval="")
            yield from ({name: text for name, text in row.items() if name and text} for row in rows)
            return
        # Not by `splitlines`, which also splits at characters that strings may contain, such as U+2028.
        for number, line in enumerate(self._text.split("\n"), 1):
            try:
                row = json.loads(line) if line.strip() else {}
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise ValueError(f"{self.place}: row {number} is not a JSON object: {line[:80]}")
            yield {name: _text(value) for name, value in row.items()}

    def numbers(self, column: str) -> Iterator[float]:
        """Yield the values of a column; rows without one are skipped.

        Raises:
            ValueError: The column does not exist, or a value is not a finite number.
        """
        if not self._is_json and column not in self.names:
            raise ValueError(f"{self.place} has no column {column!r}; columns: {', '.join(self.names) or 'none'}")
        for number, row in enumerate(self, 1):
            text = row.get(column, "")
            if text == "":
                continue
            value = {"true": 1.0, "false": 0.0}.get(text.lower())
            try:
                value = float(text) if value is None else value
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise ValueError(f"{self.place}: row {number} has {text[:40]!r} as {column}, which is no finite number")
            yield value


def _opened(place: str) -> BinaryIO:
    """Open a file or an object of a store for reading.

    Raises:
        OSError: It does not exist.
        RuntimeFault: The store cannot be reached, or needs a package that is not installed.
    """
    if not is_url(place):
        return open(place, "rb")
    system, path = open_place(place, what="rows")
    system.invalidate_cache()

    def read() -> BinaryIO:
        return io.BytesIO(system.cat_file(path))

    try:
        return translated(read, f"{place} cannot be read")
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "is not there", place) from None


def _text(value: object) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    json.dump(asdict(look(DriftRequest(**json.load(sys.stdin)))), sys.stdout)
