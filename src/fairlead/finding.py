"""Finds a submitted workload of any kind by its name, with the handle of its kind: ``fairlead.find("train")``."""

from typing import Any

from fairlead.api import RunHandle, WorkloadHandle
from fairlead.control.opening import open_named
from fairlead.control.pipelines.command import is_pipeline
from fairlead.errors import FairleadError
from fairlead.pipelines import PipelineHandle
from fairlead.specs.sweep import Sweep
from fairlead.state.snapshot import Workload, is_leaf
from fairlead.sweeps import SweepHandle


def find(name: str, *, team: str | None = None, context: str | None = None, namespace: str | None = None) -> Any:
    """Find the unfinished, or else the newest, workload of a name; a uid or its unique prefix works as well.

    Returns:
        A ``RunHandle``, ``SweepHandle`` or ``PipelineHandle``, as its ``run()`` returned when it was submitted, or for
        other kinds a ``WorkloadHandle``.

    Args:
        context: Context of the kubeconfig; with neither this nor ``namespace``, this machine is used.

    Raises:
        NotFound: No run has that name; on Kubernetes without ``team``, none in the namespace of the client.
        Conflict: No team is given, and unfinished runs of several teams have the name.
    """
    cluster = open_named(context, namespace)
    try:
        workload = cluster.find(name, team)
        return _handle_of(workload)(cluster, workload.uid)
    except FairleadError:
        cluster.close()
        raise


def _handle_of(workload: Workload[Any]) -> type[WorkloadHandle[Any]]:
    if is_pipeline(workload.spec) and not (workload.parent is not None and is_leaf(workload)):
        return PipelineHandle
    if isinstance(workload.spec, Sweep):
        return SweepHandle
    return RunHandle if is_leaf(workload) else WorkloadHandle
