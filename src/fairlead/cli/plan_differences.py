"""Formats, for ``plan --diff``, the differences between a file and the last run, as text or Markdown."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.cli.show import table
from fairlead.cluster.client import ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.control.admission import Admission
from fairlead.control.pipelines.command import UNSEEN, is_pipeline
from fairlead.control.pipelines.preview import Foreseen, Preview, preview
from fairlead.control.pipelines.submission import driver_of, pipeline_of, store_of
from fairlead.control.revisions import plan_revision
from fairlead.errors import ClusterError, Conflict, NotFound
from fairlead.frozen import dataclass
from fairlead.policy.serving.revision_outlook import RevisionOutlook
from fairlead.specs.formats.differences import differences
from fairlead.specs.formats.rendering import render_short
from fairlead.specs.formats.secret_values import conceal
from fairlead.specs.serving import Serving
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec, renamed
from fairlead.state.snapshot import AnyWorkload, is_leaf
from fairlead.text.quantities import plural

TEXT, MARKDOWN = "text", "markdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDifferences:
    """The differences of one spec.

    Attributes:
        head: Summary in a sentence.
        rows: Header and rows of a table; empty without differences.
    """

    head: str
    rows: tuple[tuple[str, ...], ...] = ()

    def shown(self, form: str) -> str:
        """Format the differences as text or Markdown."""
        if form == TEXT:
            return "\n".join([self.head, *([table(list(self.rows))] if self.rows else [])])
        lines = [f"### {self.head}"]
        if self.rows:
            header, *rows = self.rows
            marked = [_row(header), "|" + "---|" * len(header), *map(_row, rows)]
            lines += ["", *marked]
        return "\n".join(lines)


def difference_of(cluster: ClusterClient, admitted: Admission[WorkloadSpec]) -> SpecDifferences:
    """Compare a spec with the newest run of its name, or each step of a pipeline with its last result.

    Raises:
        ClusterError: Code or an input of a pipeline cannot be read.
        Conflict: The last results of its steps are in a place that only pods can read.
    """
    spec = admitted.spec
    if is_pipeline(spec) and cluster.has_containers:
        raise Conflict(f"{spec.name}: {UNSEEN}")
    if is_pipeline(spec):
        steps = steps_of(spec)
        rows = [step for step in steps if step.foreseen is not Foreseen.UNCHANGED]
        head = f"{spec.name}: {describe(steps)}"
        cells = [(step.task, step.foreseen.value, step.why) for step in rows]
        return SpecDifferences(head=head, rows=(("STEP", "WOULD", "WHY"), *cells) if would_change(steps) else ())
    try:
        last = cluster.find(spec.name, spec.team)
    except NotFound:
        return SpecDifferences(
            head=f"{spec.name}: it has not run before",
            rows=(("KEY", "WAS", "IS"), (_what(spec)[0], "", _what(spec)[1])),
        )
    if isinstance(spec, Serving) and isinstance(last.spec, Serving):
        return _of_endpoint(cluster, last, admitted)
    if not isinstance(spec, Training) or not is_leaf(last):
        old, new = render_short(last.spec), render_short(renamed(spec, last.spec.name))
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        shown_old, shown_new = conceal(old, every=True), conceal(new, every=True)
        keyed = tuple((key, str(shown_old.get(key, "")), str(shown_new.get(key, ""))) for key in keys)
        head = f"{spec.name}: {plural(len(keyed), 'key')} {'differs' if len(keyed) == 1 else 'differ'} from {last.uid}"
        return SpecDifferences(head=head, rows=(("KEY", "WAS", "IS"), *keyed) if keyed else ())
    changes = differences(last.spec, replace(spec, name=last.spec.name))
    if not changes:
        return SpecDifferences(head=f"{spec.name}: no key differs from run {last.uid}")
    rows_of_keys = tuple((change.key, change.old, change.new) for change in changes)
    head = (
        f"{spec.name}: {plural(len(changes), 'key')} {'differs' if len(changes) == 1 else 'differ'} from run {last.uid}"
    )
    return SpecDifferences(head=head, rows=(("KEY", "WAS", "IS"), *rows_of_keys))


def _of_endpoint(cluster: ClusterClient, last: AnyWorkload, admitted: Admission[WorkloadSpec]) -> SpecDifferences:
    """Compare an endpoint with its revision by a file, including its code."""
    name, revision = admitted.spec.name, plan_revision(cluster, last, admitted, time.time())
    changes = () if revision is None else revision.differences
    outlook = None if revision is None else revision.outlook
    if not changes:
        return SpecDifferences(head=f"{name}: nothing differs from {last.uid}")
    text = f"{plural(len(changes), 'key')} {'differs' if len(changes) == 1 else 'differ'} from {last.uid}"
    if outlook is not None and not last.status.phase.is_final:
        text += f": {describe_revision(outlook)}"
    return SpecDifferences(
        head=f"{name}: {text}",
        rows=(("KEY", "WAS", "IS"), *((change.key, change.old, change.new) for change in changes)),
    )


def describe_revision(outlook: RevisionOutlook) -> str:
    """Describe the revision that `run` would make of an endpoint, or that no replica is replaced."""
    place = "" if outlook.replaces is None else f", in the place of {outlook.replaces}"
    if outlook.is_new:
        return f"`fairlead run` would make another revision, {outlook.name}{place}"
    if place:
        return f"`fairlead run` would bring back {outlook.name}{place}"
    return f"`fairlead run` would change it, and {outlook.name} continues: none of its replicas is replaced"


def _what(spec: WorkloadSpec) -> tuple[str, str]:
    return ("run", spec.run) if isinstance(spec, Training) else ("kind", type(spec).__name__)


def steps_of(spec: WorkloadSpec) -> tuple[Preview, ...]:
    """Predict the outcome of each step of a pipeline.

    Raises:
        ClusterError: Code or an input cannot be read.
    """
    pipeline, driver = pipeline_of(spec), driver_of(spec)
    assert pipeline is not None, "it was kept just now"
    assert driver is not None, "it is a pipeline"
    workdir = Path(driver.workdir or Path.cwd())
    try:
        return preview(pipeline, workdir, store_of(Home.open()), os.environ, time.time())
    except OSError as error:
        raise ClusterError(f"{error.filename}: {error.strerror}; the pipeline {pipeline.name} needs it.") from error


def would_change(steps: Sequence[Preview]) -> bool:
    """Return whether anything would run or fail."""
    return any(step.foreseen not in (Foreseen.UNCHANGED, Foreseen.SKIP) for step in steps)


def describe(steps: Sequence[Preview]) -> str:
    """Describe the numbers of steps by predicted outcome."""
    counts = [(sum(step.foreseen is word for step in steps), word) for word in Foreseen]
    words = {
        Foreseen.RUN: "would run",
        Foreseen.DEPENDS: "would follow",
        Foreseen.FAIL: "would fail",
        Foreseen.SKIP: "would be skipped",
        Foreseen.UNCHANGED: "unchanged",
    }
    return ", ".join(f"{number} {words[word]}" for number, word in counts if number)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
