"""Measures the resource usage of runs' pods: by the metrics API, and for GPUs by DCGM's exporter on their nodes."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.api.objects import pod_requests, quantity
from fairlead.cluster.kubernetes.api.pod_owner import pod_owner
from fairlead.cluster.kubernetes.dcgm import (
    AT_ONCE,
    EXPORTER_PORT,
    EXPORTERS,
    MetricSample,
    device_name,
    model_of,
    samples,
    usage_of,
)
from fairlead.cluster.kubernetes.names import segment
from fairlead.cluster.usages import GpuUsage, PodUsage, Usages
from fairlead.errors import ClusterError
from fairlead.state.snapshot import PodPhase

PHASES = {"Running": PodPhase.RUNNING, "Pending": PodPhase.STARTING}


def usages(client: Client, namespace: str, run: str | None = None) -> Usages:
    """Measure the current usage of the pods of a namespace's runs, or of one run.

    Raises:
        ClusterError: The pods themselves cannot be read.
    """
    selector = names.RUN_UID if run is None else f"{names.RUN}={run}"
    query = {"labelSelector": selector}
    pods = [
        pod
        for pod in client.items(f"/api/v1/namespaces/{segment(namespace)}/pods", query)
        if (pod.get("status") or {}).get("phase") in PHASES and _is_of_its_run(pod["metadata"])
    ]
    used, missing = _used(client, namespace, query)
    gpus: dict[str, tuple[GpuUsage, ...]] = {}
    if any(pod_requests(pod["spec"]).devices for pod in pods):
        gpus, more = _gpus(client, namespace, {str(pod["spec"].get("nodeName")) for pod in pods})
        missing += more
    return Usages(pods=tuple(_usage(pod, used, gpus) for pod in pods), missing=tuple(missing) if pods else ())


def _is_of_its_run(metadata: Object) -> bool:
    """Return whether a pod is of the run that its label names; of a namespace's runs that is enough."""
    owner = pod_owner(metadata)
    name = metadata["labels"].get(names.RUN)
    return owner is not None and owner.is_borne_out and owner.key[1].partition("/")[2] == name


def gpus_of_pods(readings: Iterable[MetricSample], namespace: str) -> dict[str, tuple[GpuUsage, ...]]:
    """Return the GPUs of each pod of a namespace, as an exporter reports them.

    For a GPU that pods share by time slicing, the exporter names only one pod.
    """
    values: dict[str, dict[tuple[str, str], dict[str, float]]] = {}
    for sample in readings:
        labels = sample.labels
        pod = labels.get("exported_pod") or labels.get("pod")
        if not pod or (labels.get("exported_namespace") or labels.get("namespace")) != namespace:
            continue
        key = device_name(labels), model_of(labels)
        values.setdefault(pod, {}).setdefault(key, {})[sample.name] = sample.value
    return {
        pod: tuple(usage_of(*key, metrics) for key, metrics in sorted(gpus.items())) for pod, gpus in values.items()
    }


def _usage(pod: Object, used: Mapping[str, Object], gpus: Mapping[str, tuple[GpuUsage, ...]]) -> PodUsage:
    metadata, requests = pod["metadata"], pod_requests(pod["spec"])
    name, labels = str(metadata["name"]), metadata.get("labels") or {}
    containers = (used.get(name) or {}).get("containers")
    cpu = memory = None
    if containers is not None:
        cpu = float(1000 * sum(quantity(container["usage"].get("cpu", 0)) for container in containers))
        memory = int(sum(quantity(container["usage"].get("memory", 0)) for container in containers))
    return PodUsage(
        run=str(labels.get(names.RUN) or ""),
        team=str(metadata["namespace"]),
        pod=name,
        index=names.index_in_gang(labels),
        node=str(pod["spec"].get("nodeName") or "-"),
        phase=PHASES[pod["status"]["phase"]].value,
        cpu_milli=cpu,
        memory_bytes=memory,
        granted_cpu_milli=requests.cpu_milli,
        granted_memory_bytes=requests.memory_bytes,
        gpus=gpus.get(name, ()),
    )


def _used(client: Client, namespace: str, query: dict[str, str]) -> tuple[dict[str, Object], list[str]]:
    path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{segment(namespace)}/pods"
    try:
        return {str(metrics["metadata"]["name"]): metrics for metrics in client.items(path, query)}, []
    except ApiError as error:
        if error.status == 403:
            return {}, [f"CPU and memory usage are not known: {error.server_message}"]
        if error.status in (404, 503):
            why = (
                "this cluster has no metrics server"
                if error.status == 404
                else f"its metrics server: {error.server_message}"
            )
            return {}, [f"CPU and memory usage are not known: {why}; `fairlead doctor` says how to get one"]
        raise


def _gpus(client: Client, namespace: str, nodes: set[str]) -> tuple[dict[str, tuple[GpuUsage, ...]], list[str]]:
    try:
        exporters = [
            pod
            for selector in EXPORTERS
            for pod in client.items("/api/v1/pods", {"labelSelector": selector})
            if pod["spec"].get("nodeName") in nodes and _is_exporter(pod, namespace)
        ]
    except ApiError as error:
        if error.status != 403:
            raise
        return {}, [f"GPU usage is not known: {error.server_message}"]
    if not exporters:
        return {}, ["GPU usage is not known: no DCGM exporter runs on the nodes of these pods"]
    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="exporters") as pool:
        answers = list(pool.map(lambda pod: _ask(client, pod), exporters))
    usage = gpus_of_pods((sample for text, _ in answers for sample in samples(text)), namespace)
    return usage, sorted({why for _, why in answers if why})


def _is_exporter(pod: Object, namespace: str) -> bool:
    """Return whether a pod runs as an exporter does, which is never in a namespace with runs."""
    is_running = (pod.get("status") or {}).get("phase") == "Running"
    is_daemon = names.controller_of(pod["metadata"]).get("kind") == "DaemonSet"
    return is_running and is_daemon and pod["metadata"].get("namespace") != namespace


def _ask(client: Client, pod: Object) -> tuple[str, str]:
    """Query an exporter; return its text, or the reason why there is none."""
    metadata = pod["metadata"]
    place = f"/api/v1/namespaces/{segment(metadata['namespace'])}/pods"
    path = f"{place}/{segment(metadata['name'])}:{EXPORTER_PORT}/proxy/metrics"
    try:
        return client.text(path), ""
    except ClusterError as error:
        node = pod["spec"].get("nodeName")
        return "", f"GPU usage of {node} is not known: {error.server_message if isinstance(error, ApiError) else error}"
