"""``fairlead render``: print specs as Kubernetes objects, and the pods that they would create."""

from typing import TYPE_CHECKING, Any, cast

import click

from fairlead.cli.show import message
from fairlead.cli.specfiles import files_type, load, refuse_twice
from fairlead.cluster.kubernetes.api.objects import MODEL_LABELS
from fairlead.cluster.kubernetes.devices import WHOLE, DeviceResource
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, Version, rendered
from fairlead.cluster.kubernetes.engines.port import Submission
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.cluster.kubernetes.manifests.services import render_service
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml, write_object
from fairlead.cluster.local.home import Home
from fairlead.control.pipelines.as_pod import as_object, in_pods
from fairlead.control.pipelines.submission import as_training
from fairlead.policy.kinds.defaults import complete
from fairlead.specs.keys import Spec
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind, WorkloadSpec
from fairlead.state.plan import CreatePod
from fairlead.state.reasons import JUST_SUBMITTED
from fairlead.state.snapshot import Grant, Intent, Phase, Status, Workload

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.devices import DeviceResource
    from fairlead.cluster.kubernetes.manifests.pods import PodSettings
    from fairlead.specs.serving import Serving
    from fairlead.specs.sweep import Sweep
    from fairlead.state.snapshot import Workload

LATER = "chosen-when-it-starts"
NO_UID = "00000000-0000-0000-0000-000000000000"


@click.command()
@click.argument("files", nargs=-1, required=True, type=files_type)
@click.option(
    "--pods", is_flag=True, help="Also print the objects that the operator would create for the first attempt."
)
def render(files: tuple[str, ...], pods: bool) -> int:
    """Print FILES as Kubernetes objects in YAML; a FILE of `-` is standard input."""
    refuse_twice(files)
    objects: list[dict[str, Any]] = []
    for spec in (_as_object(spec) for file in files for spec in load(file)):
        objects.append(write_object(spec))
        if isinstance(spec, Training) and spec.workdir is not None:
            message(
                f"{spec.name}: `workdir` {spec.workdir!r}: no files go along with what is printed, so it is a "
                "directory of the image; `fairlead run` with --context takes yours along."
            )
        if pods and isinstance(spec, Training):
            objects += _created(spec)
        if pods and spec.kind == Kind.SERVING and getattr(spec, "engine", None) is not None:
            objects.append(_served(cast("Serving", spec)))
        if pods and spec.kind == Kind.SWEEP and getattr(spec, "engine", None) is not None:
            objects.append(_searched(cast("Sweep", spec)))
    print(to_yaml(objects), end="")
    return 0


def _as_object(spec: Spec) -> "Spec | WorkloadSpec":
    """Return the spec as a cluster stores it: for a pipeline of commands, the run of its driver.

    Raises:
        Conflict: A cluster cannot run it.
    """
    if spec.kind != Kind.PIPELINE:
        return spec

    assert isinstance(spec, Pipeline)
    if spec.has_children:
        return as_object(spec)
    return in_pods(as_training(spec, Home.open()))


def _created(spec: Training) -> list[dict[str, Any]]:
    """Render the operator's objects, with placeholders for the node, the uid and the GPU resource."""
    spec = complete(spec, ()).spec
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=0.0)
    workload = Workload(uid=NO_UID, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=0.0)
    grant = Grant(cpu_milli=spec.resources.pod_cpu_milli, memory_bytes=spec.resources.pod_memory_bytes)
    gpu = spec.resources.gpu
    device = None if gpu is None else DeviceResource(name=WHOLE[0], count=gpu.num_devices)
    settings = PodSettings(runtime=bundle_name())
    beside = [render_service(workload), render_run_policy(workload)]
    if spec.has_rendezvous:
        beside.append(render_key(workload, 0, LATER))
    if spec.engine is not None:
        return [*beside, *_engine_objects(workload, settings, device)]
    pods = [
        render_pod(workload, CreatePod(attempt=0, index=index, node=LATER, grant=grant), settings, device=device)
        for index in range(spec.nodes)
    ]
    return [*beside, *pods]


def _served(spec: "Serving") -> dict[str, Any]:
    """Render the initial objects for an endpoint's engine; node and GPU labels depend on the cluster."""
    assert spec.engine is not None
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=0.0)
    workload = Workload(uid=NO_UID, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=0.0)
    gpu = spec.resources.gpu
    device = None if gpu is None else DeviceResource(name=WHOLE[0], count=gpu.num_devices)
    is_chosen = gpu is not None and (gpu.model is not None or gpu.min_memory_bytes is not None)
    handover = Handover(
        workload=workload, target=Version(name="r1", spec=spec), device=device, models=_models(is_chosen)
    )
    return rendered(driver_of(spec.engine), handover)


def _searched(spec: "Sweep") -> dict[str, Any]:
    """Render the initial object for the engine of a sweep."""
    status = Status(phase=Phase.PENDING, reason=JUST_SUBMITTED, since=0.0)
    sweep = Workload(uid=NO_UID, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=0.0)
    assert spec.engine is not None
    return driver_of(spec.engine).render(sweep, spec.num_trials)


def _models(is_chosen: bool) -> tuple[tuple[str, str], ...]:
    """Return a placeholder for the node labels of a GPU model."""
    return ((MODEL_LABELS[0], LATER),) if is_chosen else ()


def _engine_objects(
    workload: "Workload", settings: "PodSettings", device: "DeviceResource | None"
) -> list[dict[str, Any]]:
    """Render the objects for an engine; the node labels of a GPU model depend on the cluster."""
    spec = workload.spec
    assert spec.engine is not None
    gpu = spec.resources.gpu
    is_chosen = gpu is not None and (gpu.model is not None or gpu.min_memory_bytes is not None)
    start = Submission(workload=workload, attempt=0, settings=settings, device=device, models=_models(is_chosen))
    return list(driver_of(spec.engine).render(start))
