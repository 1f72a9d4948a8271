"""Tells the drivers of pipelines what became of their runs, and drift detectors since when training rows count.

Both are told by an annotation of their pods. Level-triggered: the annotation describes all runs, and is written
whenever it is outdated.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fairlead.cluster.kubernetes.api.client import ApiError
from fairlead.cluster.kubernetes.api.objects import PodObject, digest
from fairlead.cluster.kubernetes.manifests.pod_environment import checkpoint_place
from fairlead.cluster.kubernetes.names import FAMILY, segment
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.cluster.kubernetes.operator.controller import Controller, PassStage, Turn
from fairlead.cluster.kubernetes.operator.pods.pod_agent import PodAgent
from fairlead.policy.kinds.parents import child_name
from fairlead.policy.kinds.pipeline import detail_of as pipeline_detail_of
from fairlead.policy.kinds.standing_pipeline import WATCH, DriftCycle
from fairlead.policy.kinds.sweep import detail_of
from fairlead.policy.kinds.table import leaf
from fairlead.specs.pipeline import DRIVER, Pipeline
from fairlead.specs.pipeline import child_name as step_child
from fairlead.specs.sweep import Sweep, values_of
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Progress, Workload, is_leaf

# All annotations of an object together may take 256 KiB.
MOST_MESSAGE = 500
MOST_TOLD = 500


class FamilyNotices(Controller):
    """Writes annotations that are outdated.

    Args:
        may_act: Returns whether this process still leads; asked before each request.
    """

    name = "families"
    stage = PassStage.CHANGES

    def __init__(self, cluster: KubernetesCluster, *, may_act: Callable[[], bool] = lambda: True) -> None:
        self._cluster = cluster
        self._view = cluster.view
        self._may_act = may_act
        self._behind = False

    @property
    def is_behind(self) -> bool:
        """Return whether anything was still to be written at the last check."""
        return self._behind

    def act(self, turn: Turn) -> None:
        """Queue the work that follows from a snapshot."""
        agent, snapshot = turn.agent, turn.snapshot
        self._behind = False
        for parent in snapshot.parents:
            if not isinstance(parent.spec, Pipeline) or parent.status.phase.is_final:
                continue
            with self._view.isolation.of(f"family of {parent.spec.team}/{parent.spec.name}"):
                self._tell_family(parent, parent.spec, agent)

    def _tell_family(self, parent: AnyWorkload, spec: Pipeline, agent: PodAgent) -> None:
        family = {child.spec.name: child for child in self._children(parent)}
        driver = family.pop(child_name(parent, DRIVER), None)
        if driver is not None:
            self._tell(agent, driver, partial(self._notice, parent, driver.progress, family))
        watch, standing = (
            family.get(child_name(parent, WATCH)),
            pipeline_detail_of(cast("Workload[Pipeline]", parent)).standing,
        )
        if watch is not None and standing is not None and spec.on is not None and spec.on.drift:
            self._tell(agent, watch, partial(self._notice_of_training, standing.drift))

    def _tell(self, agent: PodAgent, child: AnyWorkload, notice: Callable[[], dict[str, Any]]) -> None:
        """Write the annotation of a child's pod, unless it is up to date."""
        pod = self._pod_of(child)
        if pod is None:
            return
        text = json.dumps(notice(), separators=(",", ":"))
        if pod.family != digest(text):
            self._behind = True
            agent.submit(child.uid, f"tell {pod.key}", partial(self._write, pod, text))

    @staticmethod
    def _notice_of_training(cycle: DriftCycle) -> dict[str, Any]:
        content = {"run": cycle.run, "is_new": cycle.is_new, "begin": cycle.begin, "fresh": cycle.fresh}
        return {"cycle": content}

    def _children(self, parent: AnyWorkload) -> list[AnyWorkload]:
        workloads = (child.workload for child in self._view.children_of(parent.uid))
        return [workload for workload in workloads if workload is not None]

    def _pod_of(self, driver: AnyWorkload) -> PodObject | None:
        """Return the pod of the driver's latest attempt; None if it has not begun, or is over."""
        pods = (pod for pod in self._view.pods_of(driver.uid).values() if pod.attempt == driver.status.attempt)
        return next((pod for pod in pods if not pod.is_over), None)

    def _notice(self, parent: AnyWorkload, progress: Progress | None, family: dict[str, AnyWorkload]) -> dict[str, Any]:
        awaited = {step_child(ask.step, ask.index) for ask in (progress.asks if progress is not None else ())}
        runs = {}
        for whole, child in sorted(family.items()):
            name = whole.removeprefix(child_name(parent, ""))
            # Most runs of a large fan-out are over and recorded.
            if name in awaited or len(family) <= MOST_TOLD:
                runs[name] = self._of_child(child, is_asked=name in awaited)
        return {"wanted": parent.intent is Intent.RUN, "runs": runs}

    def _of_child(self, child: AnyWorkload, *, is_asked: bool) -> dict[str, Any]:
        status = child.status
        is_over = status.phase is Phase.SUCCEEDED or (status.phase.is_final and child.intent is not Intent.RUN)
        notice: dict[str, Any] = {"run": child.spec.name, "phase": status.phase.value}
        if not is_over or not is_asked:
            # The end of a run is reported completely or not at all, and a new leader may not yet know which runs wait
            # for it.
            return notice
        notice["over"] = True
        if status.phase is not Phase.SUCCEEDED:
            return notice | {"failed": True, "message": status.reason.message[:MOST_MESSAGE]}
        began = status.started_at or status.finished_at or 0.0
        notice["took_s"] = round((status.finished_at or began) - began, 3)
        if is_leaf(child):
            return notice | {"checkpoint": checkpoint_place(child, None)}
        best = self._best_of(child)
        if best is None:
            return notice
        trial, value = best
        notice["best"] = {"run": trial.spec.name, "parameters": values_of(trial.spec), "value": value}
        return notice | {"checkpoint": checkpoint_place(trial, None)}

    def _best_of(self, sweep: AnyWorkload) -> tuple[Workload, float] | None:
        """Return the best trial of a sweep, and its value; None for other parents, or if it has none."""
        if not isinstance(sweep.spec, Sweep):
            return None
        detail = detail_of(cast("Workload[Sweep]", sweep))
        if detail.best is None or detail.best_value is None:
            return None
        name = child_name(sweep, str(detail.best))
        trial = next((child for child in self._children(sweep) if child.spec.name == name), None)
        return None if trial is None else (leaf(trial), detail.best_value)

    def _write(self, pod: PodObject, text: str) -> None:
        if not self._may_act():
            return
        namespace, _, name = pod.key.partition("/")
        metadata = {"uid": pod.uid, "annotations": {FAMILY: text}}
        try:
            content = self._cluster.client.merge(
                f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}", {"metadata": metadata}
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # the pod is gone, and the next one is told again
        self._view.pods.put(content)
