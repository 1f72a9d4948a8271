"""Engines: controllers that can serve an endpoint instead of Fairlead's replicas, and the fields they do not support.

An engine creates the pods and routes requests to them itself. Features of Fairlead's placement or gateway that an
engine lacks are refused with it, as are fields that the engine would accept and then ignore.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from fairlead.specs.engines import NO_PRIORITY, refusal

if TYPE_CHECKING:
    from fairlead.specs.serving import Serving


class EndpointEngine(StrEnum):
    """The engines by their common names."""

    KSERVE = "kserve"
    KNATIVE = "knative"
    SELDON = "seldon"


TITLES = {EndpointEngine.KSERVE: "KServe", EndpointEngine.KNATIVE: "Knative", EndpointEngine.SELDON: "Seldon"}
# Knative's bounds: minimum window, and default maximum duration of a request.
LEAST_WINDOW_S, MOST_TIMEOUT_S = 6.0, 600.0

# Messages of both the parser and the API server; all follow `engine: NAME` and a verb.
MAKES_PODS = "makes the pods"
NO_IMAGE = "give the `image` that has the server and all that it needs"
NO_WORKDIR = "no files go along; put them into the image, and leave `workdir` out"
NO_SETUP = "there is no `setup` step; put what it does into the image"
NO_CAPACITY = "`capacity` cannot choose their nodes; leave it out"
ANSWERS = "answers requests without Fairlead's gateway"
NO_ACCESS = "no gateway checks keys; leave `access` out"
NO_QUEUE = "nothing waits there; leave `max_queue` out"
NO_IDEMPOTENT = "nothing is sent again; leave `idempotent` out"
NO_ROUTING = "nobody looks at prompts; leave `routing` out"
TRIES = "has no trial of a revision by evidence"
NO_CANARY = "KServe ignores a canary's weight in Standard mode; leave `canary` out"
DIVIDES = "divides requests only where Istio or Ambassador brings them"
NO_WEIGHT = "leave `canary` out"
ONE_WEIGHT = "give one weight, such as `canary: {steps: [10%]}`, which stays until `canary` is left out again"


def endpoint_engine_problems(spec: "Serving") -> Iterable[tuple[str, str]]:
    """Yield the fields of an endpoint that its engine does not support, with the reason."""
    engine = spec.engine
    if engine is None:
        return
    default = type(spec)(name="default", run="serve")
    yield from ((key, refusal(engine, verb, why)) for key, verb, why in _of_all(spec, default))
    own = {
        EndpointEngine.KSERVE: _of_kserve,
        EndpointEngine.KNATIVE: _of_knative,
        EndpointEngine.SELDON: _of_seldon,
    }
    yield from ((key, refusal(engine, verb, why)) for key, verb, why in own[engine](spec, default))


def _of_all(spec: "Serving", default: "Serving") -> Iterable[tuple[str, str, str]]:
    if spec.image is None:
        yield "image", MAKES_PODS, NO_IMAGE
    if spec.workdir is not None:
        yield "workdir", MAKES_PODS, NO_WORKDIR
    if spec.setup is not None:
        yield "setup", MAKES_PODS, NO_SETUP
    if spec.data:
        yield "data", MAKES_PODS, "no data is copied into them; give the engine the place as `model`"
    if not spec.snapshot:
        yield "snapshot", MAKES_PODS, "no files go along; leave `snapshot` out"
    if spec.priority:
        yield "priority", MAKES_PODS, NO_PRIORITY
    if spec.capacity != default.capacity:
        yield "capacity", MAKES_PODS, NO_CAPACITY
    if spec.logs != default.logs:
        yield "logs", MAKES_PODS, "their output is kubelet's; leave `logs` out"
    if spec.resources.shm_bytes is not None:
        yield "resources", MAKES_PODS, "/dev/shm is as the engine has it; leave `shm` out"
    gpu = spec.resources.gpu
    if spec.resources.sharing or (gpu is not None and gpu.milli % 1000):
        yield "resources", MAKES_PODS, "a share of a GPU cannot be found for them; ask for whole GPUs"
    if spec.access is not None:
        yield "access", ANSWERS, NO_ACCESS
    if spec.idempotent:
        yield "idempotent", ANSWERS, NO_IDEMPOTENT
    if spec.routing is not default.routing:
        yield "routing", ANSWERS, NO_ROUTING
    if spec.predictor is None and spec.max_queue != default.max_queue:
        yield "max_queue", ANSWERS, NO_QUEUE
    scale = spec.scale
    if scale.latency_s is not None or not scale.shed:
        yield "scale", ANSWERS, "no gateway measures latency; leave `latency` out"
    if scale.is_by_tokens:
        yield "scale", ANSWERS, "no gateway counts tokens; leave `time_to_first_token` and `time_per_token` out"
    if scale.queue is not None:
        yield "scale", ANSWERS, "no gateway counts waiting requests; leave `queue` out"
    if scale.schedule:
        yield "scale", "scales by itself", "it knows no calendar; leave `schedule` out"


def _of_kserve(spec: "Serving", default: "Serving") -> Iterable[tuple[str, str, str]]:
    """Yield what KServe in Standard mode, which creates a Deployment, lacks or ignores."""
    ignores = "in Standard mode ignores it"
    if spec.canary is not None:
        yield "canary", TRIES, NO_CANARY
    if spec.max_concurrency is not None:
        yield "max_concurrency", ignores, "have the server bound them, and leave `max_concurrency` out"
    if spec.timeout_s != default.timeout_s:
        yield "timeout", ignores, "have the server end requests, and leave `timeout` out"
    if spec.replicas == 0:
        yield "replicas", "in Standard mode keeps one replica at least", "give `1..N`, or `engine: knative`"
    scale = spec.scale
    if spec.most_replicas is not None and scale.prometheus is None:
        yield (
            "replicas",
            "in Standard mode does not count requests",
            "give one number, or `scale: {prometheus: ...}`, which KEDA asks for it",
        )
    if scale.prometheus is not None and scale.prometheus.aggregation.value != "sum":
        yield "scale", "has KEDA divide the number by the replicas", "give a query of their sum, without `aggregation`"
    if scale.concurrency != default.scale.concurrency:
        yield "scale", "in Standard mode does not count requests", "leave `concurrency` out"
    if scale.window_s != default.scale.window_s or scale.idle_s != default.scale.idle_s:
        yield "scale", "scales at KEDA's own pace", "leave `window` and `idle` out"


def _of_seldon(spec: "Serving", default: "Serving") -> Iterable[tuple[str, str, str]]:
    """Yield what Seldon, which creates a Deployment with a strategy of its own, lacks or ignores."""
    ignores = "does not enforce it, as no orchestrator runs before the server"
    if spec.canary is not None:
        yield "canary", DIVIDES, NO_WEIGHT
    if spec.max_concurrency is not None:
        yield "max_concurrency", ignores, "have the server bound them, and leave `max_concurrency` out"
    if spec.timeout_s != default.timeout_s:
        yield "timeout", ignores, "have the server end requests, and leave `timeout` out"
    if spec.replicas == 0:
        yield "replicas", "wakes nothing at a request", "give `1..N`, or `engine: knative`"
    scale = spec.scale
    if spec.most_replicas is not None and scale.prometheus is None:
        yield (
            "replicas",
            "does not count requests",
            "give one number, or `scale: {prometheus: ...}`, which KEDA asks for it",
        )
    if scale.concurrency != default.scale.concurrency:
        yield "scale", "does not count requests", "leave `concurrency` out"
    if spec.rollout != default.rollout:
        yield "rollout", "replaces a tenth of the replicas at a time", "leave `rollout` out"
    pod = spec.kubernetes.pod.get("spec")
    if isinstance(pod, Mapping) and "securityContext" in pod:
        yield "kubernetes", "sets the security context of pods itself", "leave `securityContext` of the pod out"


def _of_knative(spec: "Serving", default: "Serving") -> Iterable[tuple[str, str, str]]:
    canary = spec.canary
    if canary is not None and (len(canary.steps) > 1 or canary != type(canary)(steps=canary.steps)):
        yield "canary", TRIES, ONE_WEIGHT
    if canary is not None and round(canary.steps[0] * 100) != canary.steps[0] * 100:
        yield "canary", "divides requests by whole percents", "give such a step, as in `canary: {steps: [10%]}`"
    if spec.scale.prometheus is not None:
        yield "scale", "scales by requests in flight", "leave `prometheus` out"
    if spec.scale.window_s < LEAST_WINDOW_S:
        yield "scale", "has windows of 6 seconds at least", "give `window: 6s` or more"
    if spec.timeout_s > MOST_TIMEOUT_S:
        yield "timeout", "ends requests after 10 minutes at the latest", "give `timeout: 10m` or less"
    if spec.grace_s != default.grace_s:
        yield "grace", "gives replicas as long as a request may take", "leave `grace` out"
    if spec.rollout != default.rollout:
        yield "rollout", "starts a revision beside the one before", "leave `rollout` out"
    gpu = spec.resources.gpu
    if gpu is not None and (gpu.model is not None or gpu.min_memory_bytes is not None):
        yield "resources", "does not choose nodes", "ask for a number of GPUs, such as `gpu: 1`"
    if spec.kubernetes != default.kubernetes:
        yield "kubernetes", "takes few fields of a pod", "leave `kubernetes` out"
