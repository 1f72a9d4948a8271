"""GitOps tools see what is true: by kstatus, as Flux does, and by the script of docs/gitops.md, as Argo CD runs it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from lupa import lua51  # type: ignore[import-untyped]

from fairlead.cluster.kubernetes.manifests.conditions import OF_PARENTS, OF_RUNS, invalid_conditions
from fairlead.cluster.kubernetes.manifests.crds import object_schema
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml, write_object
from fairlead.cluster.kubernetes.manifests.statuses import parent_status, training_status
from fairlead.policy.kinds.retention import Retention
from fairlead.policy.kinds.serving import _with_requested_revision
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import ServingDetail
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Status, Workload, is_leaf
from tests.docs.examples import ROOT, examples_of
from tests.kubernetes.operating import gang, operating
from tests.kubernetes.test_kubectl import Kubectl
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

CURRENT, IN_PROGRESS, FAILED, TERMINATING = "Current", "InProgress", "Failed", "Terminating"
(SCRIPT,) = (each.body for each in examples_of(ROOT / "docs" / "gitops.md") if each.kind == "lua")
SPECS = (
    "name: a\nrun: x\n",
    "kind: Sweep\nname: a\nparameters: {lr: 0.1 | 0.2}\ntrial: {run: x}\n",
    "kind: Pipeline\nname: a\nsteps: {one: {run: x}}\n",
    "kind: Serving\nname: a\nrun: serve\nreplicas: 2\n",
)
EXPECTED = {
    Phase.PENDING: (IN_PROGRESS, "Progressing"),
    Phase.STARTING: (IN_PROGRESS, "Progressing"),
    Phase.RUNNING: (CURRENT, "Healthy"),
    Phase.RESTARTING: (IN_PROGRESS, "Progressing"),
    Phase.STOPPING: (IN_PROGRESS, "Progressing"),
    Phase.SUSPENDED: (IN_PROGRESS, "Suspended"),
    Phase.SUCCEEDED: (CURRENT, "Healthy"),
    Phase.FAILED: (FAILED, "Degraded"),
    Phase.STOPPED: (FAILED, "Degraded"),
}


def kstatus(content: dict[str, Any]) -> str:
    """The status of an object of an unknown kind by the published rules of kstatus, in their order."""
    metadata, status = content["metadata"], content.get("status") or {}
    if "deletionTimestamp" in metadata:
        return TERMINATING
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return IN_PROGRESS
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if conditions.get("Reconciling") == "True":
        return IN_PROGRESS
    if conditions.get("Stalled") == "True":
        return FAILED
    return IN_PROGRESS if conditions.get("Ready", "True") != "True" else CURRENT


def argo(content: dict[str, Any]) -> str:
    """The health of an object by the script, in the Lua of Argo CD."""
    lua = lua51.LuaRuntime()
    lua.globals().obj = lua.table_from(content, recursive=True)
    found = lua.execute(SCRIPT)
    assert found["message"]
    return str(found["status"])


def an_object(workload: AnyWorkload, *, generation: int = 3) -> dict[str, Any]:
    status = training_status(workload, (), generation=3) if is_leaf(workload) else parent_status(workload, generation=3)
    content = write_object(workload.spec)
    return {**content, "metadata": {**content["metadata"], "generation": generation}, "status": status}


def workloads(phase: Phase) -> Iterator[AnyWorkload]:
    """One of each kind in a phase."""
    for text in SPECS:
        (spec,) = parse(text)
        reason = Reason(code=Code.REPORTED, message="the sentence of its phase")
        status = Status(phase=phase, reason=reason, since=1_000_000.0)
        if isinstance(spec, Serving):
            status = replace(status, reason=replace(reason, code=Code.SERVING), detail=serving_detail(spec))
        yield Workload(uid="u", spec=spec, intent=Intent.RUN, status=status, version=1, created_at=1.0)  # type: ignore[arg-type]


def serving_detail(spec: Serving, **changes: Any) -> ServingDetail:
    (first,) = _with_requested_revision(spec, ServingDetail(), 1.0).revisions
    given: dict[str, Any] = {"asked": 1, "target": 1, "serving": 1, "wanted": 2, "ready": 2, **changes}
    return ServingDetail(revisions=(replace(first, failed=given.pop("failed", None)),), **given)


@pytest.mark.parametrize("phase", Phase)
def test_every_kind_is_judged_by_its_phase(phase: Phase) -> None:
    for workload in workloads(phase):
        content = an_object(workload)
        assert (kstatus(content), argo(content)) == EXPECTED[phase], content["kind"]
        assert (kstatus(an_object(workload, generation=4)), argo(an_object(workload, generation=4))) == (
            IN_PROGRESS, "Progressing",
        )  # fmt: skip


@pytest.mark.parametrize("phase", Phase)
def test_no_false_condition_has_the_reason_of_another(phase: Phase) -> None:
    for workload in workloads(phase):
        content = an_object(workload)
        found = {each["type"]: each for each in content["status"]["conditions"]}
        assert set(OF_RUNS if is_leaf(workload) else OF_PARENTS) | {"Ready"} <= set(found)
        for type_, each in found.items():
            own = "the sentence of its phase"
            if each["status"] == "True" or type_ == "Ready":
                assert each["message"] == own
            else:
                assert each["reason"] == f"Not{type_}"
                assert own not in each["message"]
                assert phase.value in each["message"]
        assert (
            sum(found[each]["status"] == "True" for each in ("Ready", "Reconciling", "Stalled") if each in found) <= 1
        )


@pytest.mark.parametrize(
    ("code", "detail", "expected"),
    [
        (Code.SERVING, {}, (CURRENT, "Healthy")),
        (Code.ASLEEP, {"wanted": 0, "ready": 0}, (CURRENT, "Healthy")),
        (Code.NOT_READY, {"ready": 1}, (IN_PROGRESS, "Progressing")),
        (Code.ROLLING_OUT, {}, (IN_PROGRESS, "Progressing")),
        (Code.SERVING, {"failed": "its server ended"}, (FAILED, "Degraded")),
        (Code.SERVING, {"unaddressed": "a Service of that name exists"}, (FAILED, "Degraded")),
    ],
)
def test_an_endpoint_is_ready_when_the_revision_of_its_spec_serves_with_all_replicas(
    code: Code, detail: dict[str, Any], expected: tuple[str, str]
) -> None:
    (*_, serving) = workloads(Phase.RUNNING)
    assert isinstance(serving.spec, Serving)
    status = replace(
        serving.status,
        reason=Reason(code=code, message="as it is"),
        detail=serving_detail(serving.spec, **detail),
    )
    content = an_object(replace(serving, status=status))
    assert (kstatus(content), argo(content)) == expected
    changed = replace(serving, status=status, spec=replace(serving.spec, run="better"))
    assert kstatus(an_object(changed)) == IN_PROGRESS, "its spec was not considered yet"


def test_an_object_that_nobody_has_considered_is_in_progress_and_one_that_is_invalid_has_failed() -> None:
    content: dict[str, Any] = {
        "metadata": {"generation": 1},
        "status": object_schema("Training")["properties"]["status"]["default"],
    }
    assert (kstatus(content), argo(content)) == (IN_PROGRESS, "Progressing")
    content["status"] = {"observedGeneration": 1, "conditions": invalid_conditions("no", at=1.0, generation=1)}
    assert (kstatus(content), argo(content)) == (FAILED, "Degraded")


@pytest.mark.slow
@pytest.mark.kubernetes
def test_tools_wait_for_real_objects_and_judge_them(
    access: Any, cluster: Any, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    place = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}"

    def judged(path: str) -> tuple[str, str]:
        content = plane.request("GET", f"{place}/{path}")
        return kstatus(content), argo(content)

    def spec(text: str) -> str:
        return to_yaml([write_object(each) for each in parse(text.format(team=namespace))])

    image, small = "image: python:3.12\n", "resources: {{cpu: 100m, memory: 64Mi}}\n"
    fake = 'kubernetes: {{metadata: {{annotations: {{fake/run: "0.2s", fake/exit-code: "%d"}}}}}}\n'
    run = f"name: %s\nteam: {{team}}\nrun: x\nretry: 0\n{image}{small}"
    web = f"kind: Serving\nname: web\nteam: {{team}}\nrun: serve\nreplicas: 2\n{image}{small}"
    kubectl("apply", "--server-side", "-f", "-", given=spec(web))
    assert judged("servings/web") == (IN_PROGRESS, "Progressing"), "no operator has seen it"
    with operating(access, namespace):
        assert "condition met" in kubectl("wait", "--for=condition=Ready", "serving/web", "--timeout=50s")
        assert judged("servings/web") == (CURRENT, "Healthy")
        for name, code, expected in (("good", 0, (CURRENT, "Healthy")), ("bad", 1, (FAILED, "Degraded"))):
            kubectl("apply", "-f", "-", given=spec((run % name) + (fake % code)))
            until(lambda name=name, expected=expected: judged(f"trainings/{name}") == expected)  # type: ignore[misc]
        kubectl(
            "apply", "--server-side", "-f", "-", given=spec(web.replace("replicas: 2", "replicas: 2\nready_within: 5m"))
        )
        until(lambda: judged("servings/web") == (CURRENT, "Healthy"))
        generation = plane.request("GET", f"{place}/servings/web")["metadata"]["generation"]
        assert generation > 1
        huge = "name: huge\nteam: {team}\nrun: x\nresources: {{gpu: 9}}\n" + image
        kubectl("apply", "-f", "-", given=spec(huge))
        until(lambda: judged("trainings/huge") == (FAILED, "Degraded"))


@pytest.mark.slow
@pytest.mark.kubernetes
def test_a_run_that_a_tool_would_create_again_outlives_its_retention(
    access: Any, cluster: Any, plane: ControlPlane, namespace: str
) -> None:
    place = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings"
    marks = {
        "argo": {"annotations": {"argocd.argoproj.io/tracking-id": "app:fairlead.dev/Training:n/argo"}},
        "flux": {"labels": {"kustomize.toolkit.fluxcd.io/name": "runs"}},
        "plain": {},
    }
    for name, metadata in marks.items():
        content = write_object(replace(gang(namespace, name, nodes=1, gpus=0, run="0.1s"), image="python:3.12"))
        content["metadata"] |= metadata
        plane.request("POST", place, content)

    def left() -> set[str]:
        return {each["metadata"]["name"] for each in plane.request("GET", place)["items"]}

    def phases() -> set[str]:
        return {str((each.get("status") or {}).get("phase")) for each in plane.request("GET", place)["items"]}

    with operating(access, namespace):
        until(lambda: phases() == {"Succeeded"})
    with operating(access, namespace, keeps=Retention(for_s=0.0), keep_s=0.2):
        until(lambda: "plain" not in left())
        until(lambda: left() == {"argo", "flux"})
