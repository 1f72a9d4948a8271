"""Derives from lists of objects what a cluster has: devices, autoscalers, storage, engines. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from fairlead.cluster.findings import Finding
from fairlead.cluster.kubernetes.api.client import Object
from fairlead.cluster.kubernetes.api.objects import MODEL_LABELS, read_node
from fairlead.cluster.kubernetes.api.resource_slices import SliceObject, all_with_slices
from fairlead.cluster.kubernetes.devices import DRIVER, driver_of
from fairlead.cluster.kubernetes.manifests.install import VERSION
from fairlead.frozen import dataclass
from fairlead.policy.gpu.cuda_support import Version, format_driver, newest_major
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.engines import Engine
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.state.node_pools import pool_name
from fairlead.text.quantities import plural

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Labels that show a node's GPU before any device plugin does.
GPU_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-1002.present",
    *MODEL_LABELS,
)
GPU_OPERATOR = "helm install gpu-operator nvidia/gpu-operator --namespace gpu-operator --create-namespace"
SLICES_REMEDY = "upgrade the cluster, or run NVIDIA's device plugin there instead of its DRA driver"
METRICS_SERVER = (
    "kubectl apply -f https://github.com/kubernetes-sigs/metrics-server/releases/latest/download/components.yaml"
)
NVIDIA = "nvidia.com/"
SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A component that a cluster may have.

    Attributes:
        api: Its API group, with the version if others share the group.
        image: Text that the names of its images contain.
        engines: Values of `engine` of a Training, a Sweep or a Serving that it supports.
    """

    name: str
    api: str
    image: str
    engines: tuple[Engine | EndpointEngine | SweepEngine, ...] = ()


KUBEFLOW = (Engine.PYTORCHJOB, Engine.TFJOB, Engine.XGBOOSTJOB, Engine.MPIJOB)
ENGINES = (
    Component(name="Kueue", api="kueue.x-k8s.io", image="kueue", engines=(Engine.KUEUE,)),
    Component(name="JobSet", api="jobset.x-k8s.io", image="jobset", engines=(Engine.JOBSET,)),
    Component(
        name="Kubeflow Trainer",
        api="trainer.kubeflow.org",
        image="trainer-controller-manager",
        engines=(Engine.KUBEFLOW_TRAINER,),
    ),
    Component(name="Kubeflow training-operator", api="kubeflow.org/v1", image="training-operator", engines=KUBEFLOW),
    Component(name="Katib", api="kubeflow.org/v1beta1", image="katib-controller", engines=(SweepEngine.KATIB,)),
    Component(name="KubeRay", api="ray.io", image="kuberay", engines=(Engine.RAYJOB,)),
    Component(name="KServe", api="serving.kserve.io", image="kserve-controller", engines=(EndpointEngine.KSERVE,)),
    Component(
        name="Knative Serving",
        api="serving.knative.dev",
        image="knative.dev/serving/cmd/controller",
        engines=(EndpointEngine.KNATIVE,),
    ),
    Component(
        name="Seldon Core",
        api="machinelearning.seldon.io",
        image="seldon-core-operator",
        engines=(EndpointEngine.SELDON,),
    ),
    Component(name="KEDA", api="keda.sh", image="keda"),
    Component(name="Volcano", api="scheduling.volcano.sh", image="vc-scheduler", engines=(Engine.VOLCANO,)),
    Component(name="Prometheus operator", api="monitoring.coreos.com", image="prometheus-operator"),
)
KARPENTER = Component(name="Karpenter", api="karpenter.sh", image="karpenter")
CLUSTER_AUTOSCALER = "cluster-autoscaler"
DEVICE_PLUGINS = (
    "k8s-device-plugin",
    "gpu-device-plugin",
    "nvidia-gpu-device-plugin",
    "intel-gpu-plugin",
    "dra-driver",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The lists that were read; None for a list that the user may not read.

    Attributes:
        apis: Every ``group/version`` that is served.
        controllers: Deployments and DaemonSets.
        slices: ResourceSlices with GPUs.
        are_slices_offered: Pods can request the devices in these.
    """

    apis: frozenset[str]
    nodes: Sequence[Object] | None
    controllers: Sequence[Object] | None
    storage_classes: Sequence[Object] | None
    slices: Sequence[SliceObject] = ()
    are_slices_offered: bool = False


def look_around(inventory: Inventory) -> list[Finding]:
    """Return findings on devices, drivers, autoscalers, storage, metrics and engines."""
    return [
        *_devices(inventory),
        *_drivers(inventory),
        _autoscaler(inventory),
        _storage(inventory),
        _metrics(inventory),
        _engines(inventory),
    ]


def is_served(part: Component, apis: frozenset[str]) -> bool:
    """Return whether the API server serves its kinds."""
    return part.api in apis or any(api.startswith(f"{part.api}/") for api in apis)


def version_of(part: Component, controllers: Iterable[Object] | None) -> str | None:
    """Return the running version: the conventional label, or the image's tag; None if none is seen to run."""
    for controller in controllers or ():
        images = [image for image in images_of(controller) if part.image in image]
        if images:
            label = (controller["metadata"].get("labels") or {}).get(VERSION)
            return str(label or _tag(images[0]))
    return None


def images_of(controller: Object) -> list[str]:
    """Return the images of a Deployment or a DaemonSet."""
    return [
        str(container.get("image") or "")
        for container in controller["spec"]["template"]["spec"].get("containers") or ()
    ]


def _devices(inventory: Inventory) -> list[Finding]:
    if inventory.nodes is None:
        return [Finding(what="GPUs", ok=True, says="not known: you may not list nodes")]
    offered: dict[str, list[str]] = {}
    silent, unusable = [], []
    sliced = {slice_.node for slice_ in inventory.slices if slice_.gpus}
    nodes = map(read_node, inventory.nodes)
    for node in all_with_slices(nodes, inventory.slices if inventory.are_slices_offered else ()):
        devices = [(name, number) for name, number in node.allocatable.devices if number]
        for name, number in devices:
            offered.setdefault(f"{number} x {node.gpu_model} as {name}", []).append(node.key)
        if not devices and node.key in sliced and not inventory.are_slices_offered:
            unusable.append(node.key)
        elif not devices and any(node.labels.get(label) not in (None, "false") for label in GPU_LABELS):
            silent.append(node.key)
    says = "; ".join(f"{what} on {some(nodes)}" for what, nodes in sorted(offered.items()))
    findings = [Finding(what="GPUs", ok=True, says=says or "no node advertises any")]
    plugins = [
        _named(controller)
        for controller in inventory.controllers or ()
        if any(p in i for i in images_of(controller) for p in DEVICE_PLUGINS)
    ]
    if any(api.startswith("nvidia.com/v1") for api in inventory.apis):
        plugins.append("the NVIDIA GPU operator")
    if unusable:
        has = "has" if len(unusable) == 1 else "have"
        says = f"{some(unusable)} {has} GPUs in ResourceSlices, which Fairlead uses from Kubernetes 1.36 on"
        findings.append(Finding(what="device plugin", ok=False, says=says, remedy=SLICES_REMEDY))
    elif silent:
        says = f"{some(silent)} {'has' if len(silent) == 1 else 'have'} GPUs by label and advertise none: " + (
            f"{', '.join(plugins)} is there and does not reach them" if plugins else "no device plugin is seen"
        )
        remedy = "kubectl -n gpu-operator get pods, and taints of these nodes" if plugins else GPU_OPERATOR
        findings.append(Finding(what="device plugin", ok=False, says=says, remedy=remedy))
    elif plugins or offered:
        findings.append(Finding(what="device plugin", ok=True, says=", ".join(plugins) or "not seen, but it works"))
    return findings


def _drivers(inventory: Inventory) -> list[Finding]:
    """Return which driver each pool with NVIDIA's GPUs has, and the CUDA that it runs; nothing without such a pool."""
    pools: dict[tuple[str, Version], list[str]] = {}
    for node in map(read_node, inventory.nodes or ()):
        driver = driver_of(node.labels)
        if driver is not None or any(number and name.startswith(NVIDIA) for name, number in node.allocatable.devices):
            pools.setdefault((pool_name(node.key, node.labels), driver or ()), []).append(node.key)
    if not pools:
        return []
    says = "; ".join(f"{pool}: {_runs(driver)} on {some(nodes)}" for (pool, driver), nodes in sorted(pools.items()))
    return [Finding(what="drivers", ok=True, says=says)]


def _runs(driver: Version) -> str:
    if not driver:
        return f"unknown, without label {DRIVER}"
    major = newest_major(driver)
    runs = "CUDA unknown" if major is None else f"CUDA {major} and older"
    return f"{format_driver(driver)} ({runs})"


def _autoscaler(inventory: Inventory) -> Finding:
    seen = []
    if is_served(KARPENTER, inventory.apis):
        seen.append(_with_version(KARPENTER, inventory.controllers))
    for controller in inventory.controllers or ():
        seen += [f"Cluster Autoscaler {_tag(image)}" for image in images_of(controller) if CLUSTER_AUTOSCALER in image]
    says = ", ".join(seen) or "none: what does not fit waits until a run ends or nodes are added"
    return Finding(what="autoscaler", ok=True, says=says)


def _storage(inventory: Inventory) -> Finding:
    if inventory.storage_classes is None:
        return Finding(what="storage", ok=True, says="not known: you may not list storageclasses")
    names = [
        f"{name} (default)"
        if (storage_class["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        else name
        for storage_class in inventory.storage_classes
        for name in [str(storage_class["metadata"]["name"])]
    ]
    if not names:
        says = "no storage class: volumes that pods share have to be made by hand; object stores need none"
        return Finding(what="storage", ok=True, says=says)
    default = any(name.endswith("(default)") for name in names)
    says = ", ".join(sorted(names)) + ("" if default else "; none is the default")
    patch = f'{{"metadata": {{"annotations": {{"{DEFAULT_CLASS}": "true"}}}}}}'
    remedy = None if default else f"kubectl patch storageclass {sorted(names)[0]} -p '{patch}'"
    return Finding(what="storage", ok=True, says=says, remedy=remedy)


def _metrics(inventory: Inventory) -> Finding:
    if any(api.startswith("metrics.k8s.io/") for api in inventory.apis):
        return Finding(what="metrics", ok=True, says="served: `fairlead top` shows what pods use")
    says = "no metrics server: `fairlead top` cannot tell what pods use"
    return Finding(what="metrics", ok=True, says=says, remedy=METRICS_SERVER)


def _engines(inventory: Inventory) -> Finding:
    seen = [
        f"{_with_version(part, inventory.controllers)}{_usable(part)}"
        for part in ENGINES
        if is_served(part, inventory.apis)
    ]
    return Finding(what="engines", ok=True, says=", ".join(seen) or "none, and none is needed")


def _usable(part: Component) -> str:
    """Return the values of `engine` that it supports, as text."""
    if not part.engines:
        return ""
    return f" for `engine: {' | '.join(part.engines)}`"


def _with_version(part: Component, controllers: Sequence[Object] | None) -> str:
    version = version_of(part, controllers)
    if version is not None:
        return f"{part.name} {version}"
    why = "version not known" if controllers is None else "its kinds are installed, but no controller was found"
    return f"{part.name} ({why})"


def _named(controller: Object) -> str:
    image = images_of(controller)[0]
    return f"{controller['metadata']['name']} {_tag(image)}"


def _tag(image: str) -> str:
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2] or "of no tag"


def some(names: Sequence[str]) -> str:
    """Return the first few of many names as text."""
    shown = sorted(names)[:SHOWN]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {plural(rest, 'more node')}" if rest else "")


def by_name(objects: Iterable[Object]) -> Mapping[str, Object]:
    """Return objects of one namespace, or cluster-scoped ones, by name."""
    return {str(content["metadata"]["name"]): content for content in objects}
