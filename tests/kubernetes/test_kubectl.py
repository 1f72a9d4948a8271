"""What people type: kubectl applies, lists, explains and waits for our kinds as for its own."""

import subprocess
from pathlib import Path

import pytest

from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml, write_object
from fairlead.cluster.kubernetes.manifests.statuses import training_status
from fairlead.specs.team import Quota, Team
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Progress, Status
from tests.kubernetes.builders import a_training, a_workload
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane


class Kubectl:
    """kubectl in one namespace; what it prints, or why it refused."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.argv = [str(binaries.ensure()["kubectl"]), "--kubeconfig", str(plane.kubeconfig(namespace=namespace))]

    def __call__(self, *args: str, given: str | None = None) -> str:
        done = subprocess.run([*self.argv, *args], input=given, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    return Kubectl(plane, namespace)


def test_get_tells_phase_ranks_progress_age_and_reason(plane: ControlPlane, namespace: str, kubectl: Kubectl) -> None:
    spec = a_training(team=namespace, nodes=4)
    assert "created" in kubectl("apply", "-f", "-", given=to_yaml([write_object(spec)]))
    reason = Reason(code=Code.COMPLETED, message="all 4 ranks ended well")
    status = Status(phase=Phase.SUCCEEDED, reason=reason, since=1_700_000_000.0)
    workload = a_workload(spec, status=status, progress=Progress(step=10, total_steps=10))
    path = f"/apis/fairlead.dev/v1alpha1/namespaces/{namespace}/trainings/train-llama/status"
    plane.request("PATCH", path, {"status": training_status(workload, (), generation=1)}, kind="merge-patch+json")
    head, row = kubectl("get", "trainings").splitlines()
    assert head.split() == ["NAME", "PHASE", "RANKS", "PROGRESS", "AGE", "REASON"]
    assert row.split()[:5] == ["train-llama", "Succeeded", "0/4", "10/10", "(100%)"]
    assert row.endswith("all 4 ranks ended well")
    assert "condition met" in kubectl("wait", "--for=condition=Complete", "training/train-llama", "--timeout=5s")
    assert kubectl("get", "ftr,fpl,ftm", "-o", "name") == kubectl("get", "fairlead", "-o", "name") != ""


def test_get_tells_what_a_team_holds_beside_its_quota(plane: ControlPlane, namespace: str, kubectl: Kubectl) -> None:
    team = Team(name=f"{namespace}-team", quota=Quota(gpu_milli=16_000))
    assert "created" in kubectl("apply", "-f", "-", given=to_yaml([write_object(team)]))
    path = f"/apis/fairlead.dev/v1alpha1/teams/{team.name}"
    held = {"gpu": "1.5", "cpu": "4500m", "memory": "6Gi", "runs": 1}
    plane.request("PATCH", f"{path}/status", {"status": {"held": held}}, kind="merge-patch+json")
    head, row = kubectl("get", "team", team.name).splitlines()
    assert head.split() == ["NAME", "READY", "WEIGHT", "RUNS", "GPUS", "QUOTA", "AGE", "REASON"]
    assert row.split()[2:6] == ["1", "1", "1.5", "16"]
    plane.request("DELETE", path)


@pytest.mark.slow
def test_apply_again_changes_nothing_and_a_mistake_is_told_in_our_words(namespace: str, kubectl: Kubectl) -> None:
    right = write_object(a_training(team=namespace))
    kubectl("apply", "-f", "-", given=to_yaml([right]))
    assert "unchanged" in kubectl("apply", "-f", "-", given=to_yaml([right]))
    wrong = {**right, "metadata": {"name": "other", "namespace": namespace}, "spec": {"run": "x", "nodes": 0}}
    refusal = kubectl("apply", "-f", "-", given=to_yaml([wrong]))
    assert "0 is out of bounds; give 1 to 10000, such as `nodes: 2`" in refusal


def test_a_server_side_apply_and_a_dry_run_work_as_for_gitops(namespace: str, kubectl: Kubectl) -> None:
    content = to_yaml([write_object(a_training(team=namespace))])
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", given=content)
    assert kubectl("diff", "--server-side", "-f", "-", given=content) == ""


def test_explain_tells_what_a_key_is_for(kubectl: Kubectl) -> None:
    assert "Time between the stop notice (SIGTERM) and SIGKILL." in kubectl("explain", "training.spec.grace")
    assert "nodeSelector" in kubectl("explain", "training.spec.kubernetes.spec")


@pytest.mark.slow
def test_the_rendered_install_is_what_kubectl_applies(tmp_path: Path, kubectl: Kubectl) -> None:
    from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install

    path = tmp_path / "install.yaml"
    path.write_text(to_yaml(render_install(InstallSettings(image="fairlead:test", namespace="default"))))
    assert "deployment.apps/fairlead-operator serverside-applied" in kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(path)
    )
