"""The controllers to which a run can be handed instead of being placed by Fairlead, and what no run has there.

An engine places the pods of a run, so whatever only our own placement could honour is refused with it.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.specs.training import Training


class Engine(StrEnum):
    """The engines, by what people call them; each stands for a kind of object that its controller knows."""

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
"""Engines that start the program themselves, in pods that do not begin with it."""


NAME_MOST = 40
"""Characters of a run's name; engines add theirs to it for the names of pods, which have 63."""


def engine_problems(spec: "Training") -> Iterable[tuple[str, str]]:
    """Return what a run with an engine asks for that it cannot have, and what one without cannot."""
    engine = spec.engine
    if engine is None:
        if spec.queue is not None:
            yield "queue", "it is the queue of an engine; give `engine` too, such as `engine: kueue`, or leave it out"
        return
    if engine is Engine.KUEUE and spec.queue is None:
        yield (
            "queue",
            "`engine: kueue` needs the LocalQueue that admits the run; give its name, such as `queue: team-a`",
        )
    if len(spec.name) > NAME_MOST:
        yield "name", f"with `engine` it has at most {NAME_MOST} characters, as pods are named after it; shorten it"
    itself = f"`engine: {engine}` places its pods itself: "
    if spec.most_nodes is not None:
        yield "most_nodes", f"{itself}a gang cannot change its size there; give `nodes` one number"
    if spec.capacity.auto:
        yield "capacity", f"{itself}`spot: auto` cannot choose its nodes; leave it out"
    if spec.capacity.max_price is not None:
        yield "capacity", f"{itself}`max_price` cannot choose its nodes; leave it out, or give `max_cost`"
    if spec.priority:
        yield "priority", f"{itself}its queue has an order of its own; leave `priority` out"
    gpu = spec.resources.gpu
    if gpu is not None and gpu.milli % 1000:
        yield "resources", f"{itself}a share of a GPU cannot be found for it; ask for whole GPUs"
    if engine in LAUNCHES_ITSELF:
        yield from _launching_problems(spec, engine)


def _launching_problems(spec: "Training", engine: Engine) -> Iterable[tuple[str, str]]:
    itself = f"`engine: {engine}` starts the program itself: "
    if spec.image is None:
        has = "Ray" if engine is Engine.RAYJOB else "mpirun"
        yield "image", f"{itself}give an image that has Python and {has}"
    if spec.framework is not None:
        yield "framework", f"{itself}ranks meet as it has them meet; leave `framework` out"
    if spec.setup is not None and engine is Engine.MPIJOB:
        yield "setup", f"{itself}its workers have no `setup` step; put what it does into the image"
    if spec.parallel is not None:
        yield "parallel", f"{itself}no rank of it finds a split; leave `parallel` out"
