"""Ask and tell: values of parameters for an evaluation of one's own, chosen as those of a sweep's trials are."""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import IO, Any

from fairlead.errors import ClusterError, Conflict, InvalidArgument, InvalidSpec, NotFound
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord, TrialState, front, ranked
from fairlead.python_keys import as_plain, read_keys
from fairlead.specs.sweep import MAX_TRIALS, Sampler
from fairlead.specs.sweep import Sweep as SweepSpec
from fairlead.untrusted_json import parse_object

MOST_LINE_BYTES = 1 << 20


class Search:
    """A search whose trials the caller evaluates: ``ask`` for values, and ``tell`` what they are worth.

    Processes of one machine that give the same file share the search. Not thread-safe: use it in one thread.

    Args:
        parameters: Ranges and values, as in ``Sweep``.
        objective: Name of what is minimized, or ``{"metric": "accuracy", "goal": "maximize"}``.
        objectives: Two to four objectives in place of ``objective``, such as ``["loss", "accuracy:maximize"]``.
        sampler: As in ``Sweep``; ``tpe``, or ``nsga-ii`` for several objectives, when left out.
        seed: Seed of the sampler, 0 to 2147483647.
        file: JSON-lines file that keeps all trials, with which a later process continues; None keeps none.

    Raises:
        InvalidSpec: A key or value is wrong; the message lists every mistake at once.
        Conflict: The file has another search.
        ClusterError: The file cannot be read or written.
    """

    def __init__(
        self,
        *,
        parameters: Mapping[str, str],
        objective: str | Mapping[str, str] | None = None,
        objectives: Sequence[str] | None = None,
        sampler: str | None = None,
        seed: int = 0,
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        keys = {"parameters": parameters, "objective": objective, "objectives": objectives, "sampler": sampler}
        present = {key: value for key, value in keys.items() if value is not None}
        self._keys = as_plain({**present, "seed": seed}, source="Search")
        if objective is None and objectives is None:
            raise InvalidSpec(("Search: objective: missing; give the name of what you tell, such as `loss`",))
        # Validated as a sweep with as many trials as there may be, in the words of files.
        most = {} if sampler == Sampler.GRID else {"trials": MAX_TRIALS}
        whole = {"kind": "Sweep", "name": "search", **self._keys, **most, "trial": {"run": "true"}}
        spec = read_keys(whole, source="Search")
        assert isinstance(spec, SweepSpec)
        self._spec = spec
        self._trials: list[TrialRecord] = []
        self._file = None if file is None else Path(file)
        self._num_read = 0
        with self._shared():
            pass

    def ask(self) -> TrialRecord:
        """Return the next trial, whose ``values`` are to be evaluated.

        Raises:
            NotFound: A grid has no more combinations, or 10,000 trials were asked for.
        """
        with self._shared() as file:
            number = len(self._trials)
            if number >= self._spec.num_trials:
                raise NotFound(f"All {number} trials of this search have been asked for.")
            values = suggest(self._spec, number, self._trials)
            self._keep(file, {"ask": number, "values": values})
        return self._trials[number]

    def tell(self, trial: TrialRecord | int, value: float | Sequence[float] | None) -> None:
        """Record what a trial is worth: a finite number, one for each of several objectives, or None if it failed.

        Raises:
            InvalidArgument: There is no such trial, its value was told before, or the value is no finite number.
        """
        try:
            number = trial.number if isinstance(trial, TrialRecord) else index(trial)
        except TypeError as error:
            raise InvalidArgument(f"trial: {trial!r} is none; give what ask() returned, or its number.") from error
        numbers = _numbers(value, len(self._spec.judged_by))
        with self._shared() as file:
            if not 0 <= number < len(self._trials):
                raise InvalidArgument(f"trial: {number} was not asked for; there are {len(self._trials)}, from 0.")
            if self._trials[number].state is not TrialState.ACTIVE:
                raise InvalidArgument(
                    f"trial: {number} has {self._trials[number].state} already; a trial is told once."
                )
            self._keep(file, {"tell": number, "value": numbers})

    def trials(self) -> list[TrialRecord]:
        """Return all trials by number; those that were not told yet are active."""
        with self._shared():
            return list(self._trials)

    def best(self) -> TrialRecord:
        """Return the trial with the best value.

        Raises:
            NotFound: None was told yet, or there are several objectives.
        """
        objective, trials = self._spec.objective, self.trials()
        if objective is None:
            raise NotFound("There are several objectives, so that many trials may be unbeaten: ask for the front.")
        best = next(iter(ranked(trials, objective.goal)), None)
        if best is None:
            raise NotFound("No trial has a value yet.")
        return best

    def front(self) -> list[TrialRecord]:
        """Return the trials that no other beats in all of several objectives, sorted by the first one."""
        return front(self.trials())

    def _keep(self, file: "IO[bytes] | None", record: dict[str, Any]) -> None:
        """Append a record to the file, then take it in."""
        if file is not None:
            line = json.dumps(record).encode() + b"\n"
            file.seek(self._num_read)
            file.truncate()  # the half of a line that a killed process left
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self._num_read += len(line)
        self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        if "ask" in record:
            values = {parameter.name: record["values"][parameter.name] for parameter in self._spec.space
                      if parameter.name in record["values"]}  # fmt: skip
            if record["ask"] != len(self._trials) or any(type(v) not in (str, int, float) for v in values.values()):
                raise ValueError(f"trial {record['ask']!r} is not the next")
            self._trials.append(TrialRecord(number=len(self._trials), values=values, state=TrialState.ACTIVE))
            return
        number, value = record["tell"], record["value"]
        if type(number) is not int or not 0 <= number < len(self._trials):
            raise ValueError(f"trial {number!r} was not asked for")
        trial = self._trials[number]
        if value is None:
            self._trials[number] = replace(trial, state=TrialState.FAILED)
            return
        numbers = _numbers(value, len(self._spec.judged_by)) or []
        if len(numbers) == 1:
            self._trials[number] = replace(trial, state=TrialState.SUCCEEDED, value=numbers[0])
            return
        scores = tuple(
            objective.goal.sign * number for objective, number in zip(self._spec.objectives, numbers, strict=True)
        )
        self._trials[number] = replace(trial, state=TrialState.SUCCEEDED, scores=scores)

    @contextmanager
    def _shared(self) -> "Iterator[IO[bytes] | None]":
        """Hold the file, with all that other processes have written taken in; None without one."""
        if self._file is None:
            yield None
            return
        try:
            with os.fdopen(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._read(file)
                yield file
        except OSError as error:
            raise ClusterError(f"{self._file}: the search cannot be kept: {error.strerror or error}") from error

    def _read(self, file: "IO[bytes]") -> None:
        file.seek(self._num_read)
        while (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
            try:
                record = parse_object(line, max_bytes=MOST_LINE_BYTES, finite=True)
                if self._num_read:
                    self._take(record)
                elif record.get("search") != self._keys:
                    raise Conflict(
                        f"{self._file} has another search: {json.dumps(record.get('search'))}, and this one is "
                        f"{json.dumps(self._keys)}. Give another file."
                    )
            except (ValueError, KeyError, TypeError, AssertionError) as error:
                if isinstance(error, InvalidArgument):
                    raise
                raise ClusterError(f"{self._file} is not a search's, or is damaged: {error}. Give another.") from error
            self._num_read += len(line)
        if len(line) == MOST_LINE_BYTES:
            raise ClusterError(f"{self._file} is not a search's: it has a line of more than 1 MiB. Give another file.")
        if not self._num_read:
            if line and not b'{"search": '.startswith(line[:11]):
                raise ClusterError(f"{self._file} is not a search's. Give another file.")
            self._write_header(file)

    def _write_header(self, file: "IO[bytes]") -> None:
        line = json.dumps({"search": self._keys}).encode() + b"\n"
        file.seek(0)
        file.truncate()
        file.write(line)
        file.flush()
        self._num_read = len(line)


def _numbers(value: object, num_wanted: int) -> list[float] | None:
    """Return the value of each objective; None for a trial that failed."""
    if value is None:
        return None
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or PyTorch
    values: list[Any] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if len(values) != num_wanted:
        what = "one number" if num_wanted == 1 else f"{num_wanted} numbers"
        raise InvalidArgument(f"value: {value!r} has {len(values)}; give {what}, or None for a trial that failed.")
    try:
        numbers = [float(number) for number in values if not isinstance(number, str)]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) != num_wanted or not all(math.isfinite(number) for number in numbers):
        raise InvalidArgument(f"value: {value!r} is not finite, or no number; tell None for a trial that failed.")
    return numbers
