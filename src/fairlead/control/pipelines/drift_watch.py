"""Detects drift in a pod that a pipeline has for this on a cluster, and reports its findings.

The operator writes to a file from which training rows count and the state of knowledge then, and stores the reports:
the successor of a lost pod continues from there.

See decision 108.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from fairlead.control.pipelines.drift import DriftFinding, look, package_problem, place_of, request_of
from fairlead.control.pipelines.watched import listing_of, signature_of
from fairlead.errors import RuntimeFault
from fairlead.runtime.places import is_url
from fairlead.runtime.progress import Reporter
from fairlead.specs.pipeline import Drift


class DriftWatch:
    """Checks for drift on request, and reports new findings.

    Args:
        base: Base of relative paths.
        state_file: File to which the operator writes the state of the last training.
    """

    def __init__(self, drift: Drift, base: Path, state_file: Path, reporter: Reporter) -> None:
        self._drift = drift
        self._base = base
        self._state_file = state_file
        self._reporter = reporter
        self._places = [place_of(data, base) for data in (drift.data, drift.reference) if data is not None]
        self._run: int | None = None
        self._begin: int | None = None
        self._looked = ""
        self._problem: str | None = None

    def look(self) -> None:
        """Check the rows since the last training if any of the files has changed since the last check."""
        cycle = self._cycle()
        if cycle is None:
            return  # the operator has not written the file yet
        if cycle["run"] != self._run:
            self._run, self._begin, self._looked = cycle["run"], cycle["begin"], ""
        try:
            looked = self._signature()
        except (OSError, RuntimeFault) as error:
            self._report(cycle, "", DriftFinding(problem=str(error)))
            return
        if looked == self._looked:
            return
        finding = DriftFinding(problem=package_problem(self._drift))
        if finding.problem is None:
            finding = look(
                request_of(self._drift, self._base, begin=self._begin, fresh=cycle["fresh"], is_new=cycle["is_new"])
            )
        if finding.problem is None:
            self._begin, self._looked = finding.begin, looked
        self._report(cycle, looked, finding)

    def _cycle(self) -> dict[str, Any] | None:
        try:
            text = self._state_file.read_text()
        except FileNotFoundError:
            return None
        cycle: dict[str, Any] | None = json.loads(text).get("cycle") if text else None
        return cycle

    def _signature(self) -> str:
        paths = [Path(place) for place in self._places if not is_url(place)]
        listed = [listing_of(place) for place in self._places if is_url(place)]
        return hashlib.sha256(" ".join((signature_of(paths), *listed)).encode()).hexdigest()

    def _report(self, cycle: dict[str, Any], looked: str, finding: DriftFinding) -> None:
        if finding.problem is not None and finding.problem != self._problem:
            print(f"fairlead: drift cannot be looked for: {finding.problem}", flush=True)
        self._problem = finding.problem
        # After a failed check the earlier state of knowledge stays.
        known = {"begin": self._begin, "fresh": cycle["fresh"] if finding.problem is not None else finding.fresh}
        sentence = finding.reason if finding.problem is None else f"it cannot be looked for: {finding.problem}"
        self._reporter.fact(
            drift={"run": cycle["run"], "looked": looked, "due": finding.is_due, "said": sentence, **known}
        )
