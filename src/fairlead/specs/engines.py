"""Engines: controllers that can place a run instead of Fairlead, and the fields they do not support.

An engine places the pods of a run, so fields that only Fairlead's placement can honour are refused with it.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.specs.training import Training


class Engine(StrEnum):
    """The engines by their common names; each has a kind of object that its controller handles."""

    JOBSET = "jobset"
    KUEUE = "kueue"
    PYTORCHJOB = "pytorchjob"
    TFJOB = "tfjob"
    XGBOOSTJOB = "xgboostjob"
    MPIJOB = "mpijob"
    KUBEFLOW_TRAINER = "kubeflow-trainer"
    RAYJOB = "rayjob"
    VOLCANO = "volcano"


LAUNCHES_ITSELF = frozenset((Engine.MPIJOB, Engine.RAYJOB))
"""Engines that start the program themselves, in pods whose main process is another."""


NAME_MOST = 40
"""Maximum length of a run's name; engines add suffixes for names of pods, which have at most 63 characters."""

# Messages of both the parser and the API server; those of the last two groups follow `engine: NAME` and its verb.
NO_ENGINE = "it is the queue of an engine; give `engine` too, such as `engine: kueue`, or leave it out"
NO_QUEUE = "`engine: kueue` needs the LocalQueue that admits the run; give its name, such as `queue: team-a`"
PLACES = "places its pods itself"
NO_SPAN = "a gang cannot change its size there; give `nodes` one number"
NO_PRICE = "`max_price` cannot choose its nodes; leave it out, or give `max_cost`"
NO_PRIORITY = "its queue has an order of its own; leave `priority` out"
NO_IN_PLACE = "`in_place` is for pods that Fairlead starts; leave `elastic` out"
STARTS = "starts the program itself"
NO_PREFLIGHT = "Fairlead cannot give it other nodes than those that a test names; leave `preflight` out"
NO_NETWORK = "it has none to give its pods; leave `network` out, or give `network: auto`"
NO_FRAMEWORK = "ranks meet as it has them meet; leave `framework` out"
NO_SETUP = "its workers have no `setup` step; put what it does into the image"
NO_SPLIT = "no rank of it finds a split; leave `parallel` out"
NO_IMAGE = "give an image that has Python, and Ray or mpirun"


def engine_problems(spec: "Training") -> Iterable[tuple[str, str]]:
    """Yield the fields of a run that its engine does not support, or that require an engine it does not name."""
    engine = spec.engine
    if engine is None:
        if spec.queue is not None:
            yield "queue", NO_ENGINE
        return
    if engine is Engine.KUEUE and spec.queue is None:
        yield "queue", NO_QUEUE
    if len(spec.name) > NAME_MOST:
        yield "name", f"with `engine` it has at most {NAME_MOST} characters, as pods are named after it; shorten it"
    if spec.most_nodes is not None:
        yield "most_nodes", refusal(engine, PLACES, NO_SPAN)
    if spec.capacity.auto:
        yield "capacity", refusal(engine, PLACES, "`spot: auto` cannot choose its nodes; leave it out")
    if spec.capacity.max_price is not None:
        yield "capacity", refusal(engine, PLACES, NO_PRICE)
    if spec.priority:
        yield "priority", refusal(engine, PLACES, NO_PRIORITY)
    if spec.elastic == "in_place":
        yield "elastic", refusal(engine, PLACES, NO_IN_PLACE)
    if spec.network.is_required or spec.network.attach:
        yield "network", refusal(engine, PLACES, NO_NETWORK)
    if spec.preflight is not None:
        yield "preflight", refusal(engine, PLACES, NO_PREFLIGHT)
    gpu = spec.resources.gpu
    if gpu is not None and gpu.milli % 1000:
        yield "resources", refusal(engine, PLACES, "a share of a GPU cannot be found for it; ask for whole GPUs")
    if engine in LAUNCHES_ITSELF:
        yield from _launching_problems(spec, engine)


def _launching_problems(spec: "Training", engine: Engine) -> Iterable[tuple[str, str]]:
    if spec.image is None:
        yield "image", refusal(engine, STARTS, NO_IMAGE)
    if spec.framework is not None:
        yield "framework", refusal(engine, STARTS, NO_FRAMEWORK)
    if spec.setup is not None and engine is Engine.MPIJOB:
        yield "setup", refusal(engine, STARTS, NO_SETUP)
    if spec.parallel is not None:
        yield "parallel", refusal(engine, STARTS, NO_SPLIT)


def refusal(engine: StrEnum, verb: str, why: str) -> str:
    """Format why an engine does not support a field; ``verb`` is what the engine does itself."""
    return f"`engine: {engine}` {verb}: {why}"
