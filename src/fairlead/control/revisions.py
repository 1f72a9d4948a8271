"""Plans a change of a persistent workload's spec, such as an endpoint's, as ``run`` of its file would make it.

See decision 49.
"""

from typing import Any, cast

from fairlead.cluster.client import ClusterClient
from fairlead.control.admission import Admission
from fairlead.frozen import dataclass
from fairlead.policy.serving.revision_outlook import RevisionOutlook, revision_outlook
from fairlead.specs.formats.differences import Difference, differences
from fairlead.specs.serving import Serving
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import AnyWorkload, Workload
from fairlead.text.lists import listed

CODE = "code"
MOST_FILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRevision:
    """The planned change of an existing workload by submitting a spec of its name.

    Attributes:
        run: The workload as observed.
        differences: Differences of its spec, including the code of an endpoint; empty if nothing changes.
        outlook: Outlook of the revision of a changed endpoint; None for workloads without revisions.
        is_standing: Whether submitting it again changes it, as for an endpoint but not a run.
    """

    run: AnyWorkload
    differences: tuple[Difference, ...] = ()
    outlook: RevisionOutlook | None = None
    is_standing: bool = False


def plan_revision(
    cluster: ClusterClient, run: AnyWorkload, admitted: Admission[WorkloadSpec], now: float
) -> PlannedRevision | None:
    """Plan the change of a workload by submitting an admitted spec of its name; stores and sends nothing.

    Returns:
        The planned change; None if the workload cannot be changed in this way.
    """
    revised = cluster.revised(run, admitted.spec, directory=admitted.directory)
    if revised is None:
        return None
    if revised == run.spec:
        return PlannedRevision(run=run, is_standing=True)
    differences_ = [*differences(run.spec, revised)]
    outlook = None
    if isinstance(run.spec, Serving) and isinstance(revised, Serving):
        if run.spec.code != revised.code:
            differences_.append(_of_code(cluster, run, admitted, revised))
        outlook = revision_outlook(cast("Workload[Serving]", run), revised, now)
    return PlannedRevision(run=run, differences=tuple(differences_), outlook=outlook, is_standing=True)


def _of_code(cluster: ClusterClient, run: AnyWorkload, admitted: Admission[Any], revised: Serving) -> Difference:
    """Return the difference of the code, with its files if they can be compared."""
    old, new = (getattr(spec, CODE)[:8] or "none" for spec in (run.spec, revised))
    paths = cluster.edited_code(run, revised, admitted.directory)
    if not paths:
        return Difference(key=CODE, old=old, new=new)
    return Difference(key=CODE, old=old, new=f"{new} ({listed(paths, MOST_FILES)})")
