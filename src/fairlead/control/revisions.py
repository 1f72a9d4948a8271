"""Another spec for a workload that stays, such as an endpoint, as ``run`` of its file would give it."""

from typing import Any, cast

from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import Admission
from fairlead.frozen import dataclass
from fairlead.policy.serving.revision_outlook import RevisionOutlook, revision_outlook
from fairlead.specs.formats.differences import Difference, differences
from fairlead.specs.serving import Serving
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import AnyWorkload, Workload

CODE = "code"
MOST_FILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A workload that is under way, and what submitting a spec of its name changes of it.

    Attributes:
        run: As it is.
        differences: Of the spec that it gets, the code of an endpoint included; empty where nothing changes.
        outlook: Of an endpoint that changes; None for what has no revisions.
        is_standing: It is submitted again to be changed, such as an endpoint; a run is not.
    """

    run: AnyWorkload
    differences: tuple[Difference, ...] = ()
    outlook: RevisionOutlook | None = None
    is_standing: bool = False


def plan_revision(
    cluster: ClusterClient, run: AnyWorkload, admitted: Admission[WorkloadSpec], now: float
) -> Revision | None:
    """Plan what submitting an admitted spec would change of a workload that has its name; nothing is kept or sent.

    Returns:
        None where the workload is one that cannot be changed so.
    """
    revised = cluster.revised(run, admitted.spec, directory=admitted.directory)
    if revised is None:
        return None
    if revised == run.spec:
        return Revision(run=run, is_standing=True)
    found = [*differences(run.spec, revised)]
    outlook = None
    if isinstance(run.spec, Serving) and isinstance(revised, Serving):
        if run.spec.code != revised.code:
            found.append(_of_code(cluster, run, admitted, revised))
        outlook = revision_outlook(cast("Workload[Serving]", run), revised, now)
    return Revision(run=run, differences=tuple(found), outlook=outlook, is_standing=True)


def _of_code(cluster: ClusterClient, run: AnyWorkload, admitted: Admission[Any], revised: Serving) -> Difference:
    """Tell how the code differs: by its files, as far as these can be compared."""
    old, new = (getattr(spec, CODE)[:8] or "none" for spec in (run.spec, revised))
    paths = cluster.edited_code(run, revised, admitted.directory)
    if not paths:
        return Difference(key=CODE, old=old, new=new)
    more = len(paths) - MOST_FILES
    named = ", ".join(paths[:MOST_FILES]) + (f" and {more} more" if more > 0 else "")
    return Difference(key=CODE, old=old, new=f"{new} ({named})")
