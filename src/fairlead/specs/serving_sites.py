"""The keys of an endpoint at many sites: where they are, and the waves in which a new revision reaches them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, PATH, Limit, Text, enforce, quote
from fairlead.specs.field_types import ANY, CPU, DURATION, SHARE, SIZE, ListField, Section, Single
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.resources import Resources
from fairlead.specs.sections import part_of, with_keys, without
from fairlead.specs.training import DAY_S, Training

SERVING_SITES_MOST = 1_000
STEPS_MOST = 20
PERCENT = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,4})?%")
NAMES = re.compile(rf"(?:{NAME.pattern})(?:\+(?:{NAME.pattern}))*")


def _step(text: str) -> str:
    """Return the step as it is; its meaning is that of ``divide``."""
    if text.isdigit():
        if not 1 <= int(text) <= SERVING_SITES_MOST:
            raise ValueError(f"is no number of sites; give 1 to {SERVING_SITES_MOST}")
    elif text.endswith("%"):
        if PERCENT.fullmatch(text) is None or not 0 < float(text[:-1]) <= 100:
            raise ValueError("is no share of the sites; give more than 0% and at most 100%")
    elif NAMES.fullmatch(text) is None:
        raise ValueError("is no number, share such as 25%, or names of sites joined by `+`")
    return text


STEP = Single(
    what="a number of sites, a share such as 25%, or names of sites joined by `+`",
    tags=ANY,
    parse=_step,
    render=lambda text: int(text) if text.isdigit() else text,
    schema={
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": rf"^(?:{PERCENT.pattern}|{NAMES.pattern}|[0-9]+)$"},
        ]
    },
    text=rf"{PERCENT.pattern}|{NAMES.pattern}|[0-9]+",
)
PUBLIC_KEY = Text(
    max_length=200,
    pattern=r"ssh-ed25519 [A-Za-z0-9+/]{68}={0,2}(?: [!-~]{1,100})?",
    what="an Ed25519 public key, the one line of the `.pub` file that `ssh-keygen -t ed25519` makes",
)


def replica_resources() -> Section:
    """Return the resources of a replica, which does not end, so that nothing is learnt of its use, nor of its pace."""
    whole = without(part_of(Resources), "colocate")
    fixed = {"cpu": CPU, "memory": SIZE}
    keys = (
        replace(key, kind=fixed[key.name], doc=f"{key.doc.partition('; `auto`')[0]}.", attributes=key.attributes[:1])
        for key in whole.keys
        if key.name in fixed
    )
    return with_keys(whole, *keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSite:
    """The cluster of a site."""

    context: Annotated[
        str | None,
        Key("context", rule=Text(max_length=253), example="k3s-north", also="cluster kubeconfig ctx"),
        "Context of the kubeconfig.",
    ] = None
    namespace: Annotated[
        str | None,
        Key("namespace", rule=NAME, example="vision", also="team ns"),
        "Namespace of the endpoint there; the context's own when left out.",
    ] = None
    home: Annotated[
        str | None,
        Key("home", rule=PATH, example="/var/lib/fairlead-north", also="directory state path fairlead_home"),
        "State directory of a local cluster of this machine, in place of `context`.",
    ] = None
    resources: Annotated[
        Resources | None,
        SameKey(Training, "resources", {"kind": replica_resources}),
        "What each replica gets there, in place of the endpoint's `resources`.",
    ] = None

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def place(self) -> tuple[str | None, str | None, str | None]:
        """Return its context, namespace and state directory."""
        return self.context, self.namespace, self.home

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if (self.context is None) == (self.home is None):
            number = "neither is" if self.context is None else "both are"
            yield "context", f"a site is a `context` of the kubeconfig or a `home` here, and {number} given; give one"
        elif self.home is not None and not self.home.startswith("/"):
            yield "home", f"{quote(self.home)} is relative; give an absolute path"
        if self.home is not None and self.namespace is not None:
            yield "namespace", "a local cluster has none; leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """The waves of a rollout over sites."""

    steps: Annotated[
        tuple[str, ...],
        Key(
            "steps",
            ListField(item=STEP, most=STEPS_MOST),
            example="[north, 10%, 50%]",
            also="waves stages batches partitions ring rings",
        ),
        "After each wave so many sites have it: a number, a share or names; all after the last.",
    ] = ("1", "25%")
    hold_s: Annotated[
        float,
        Key(
            "hold", DURATION, Limit(low=0, high=30 * DAY_S), example="1h", also="soak bake pause_between wait interval"
        ),
        "Time for which all sites of a wave serve it before the next wave begins.",
    ] = 0.0
    deadline_s: Annotated[
        float,
        Key("deadline", DURATION, Limit(low=1, high=30 * DAY_S), example="6h", also="timeout within progress_deadline"),
        "Time after which a wave goes on without sites that are away or late, if `min` of it serve.",
    ] = 3_600.0
    min_share: Annotated[
        float,
        Key("min", SHARE, Limit(low=0.01, high=1), example="80%", also="min_sites quorum minimum min_available"),
        "Share of a wave's sites that have to serve it, after `deadline`.",
    ] = 0.5
    pause: Annotated[
        bool,
        Key("pause", example="true", also="paused stop hold_back freeze"),
        "Begin no further wave while it is set.",
    ] = False

    def __post_init__(self) -> None:
        enforce(broken(self))


def divide(steps: Sequence[str], sites: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the sites of each wave, in order; the last has all that no step reached.

    Sites that a step names come in its wave, the others in the order of the spec.
    """
    waves: list[tuple[str, ...]] = []
    left = list(sites)
    total = len(left)
    named = {name for step in steps if _is_names(step) for name in step.split("+")}
    for step in steps:
        if _is_names(step):
            wave = [name for name in step.split("+") if name in left]
        else:
            goal = int(step) if step.isdigit() else math.ceil(total * float(step[:-1]) / 100)
            wanting = max(0, goal - (total - len(left)))
            wave = [name for name in left if name not in named][:wanting]
        if wave:
            waves.append(tuple(wave))
            left = [name for name in left if name not in wave]
    return (*waves, tuple(left)) if left else tuple(waves)


def _is_names(step: str) -> bool:
    return not (step.isdigit() or step.endswith("%"))


def sites_problems(sites: Mapping[str, ServingSite], waves: Waves) -> Iterable[tuple[str, str]]:
    """Yield what is wrong with the sites of an endpoint and their waves, by key."""
    if not sites:
        if waves != Waves():
            yield (
                "waves",
                "they are of `sites`, such as `sites: {north: {context: k3s-north}}`; give some, or remove it",
            )
        return
    if len(sites) > SERVING_SITES_MOST:
        yield "sites", f"{len(sites)} sites; give at most {SERVING_SITES_MOST}"
    places: dict[tuple[str | None, str | None, str | None], str] = {}
    for name, site in sites.items():
        if (problem := NAME.problem(name)) is not None:
            yield "sites", problem
        other = places.setdefault(site.place, name)
        if other != name:
            yield "sites", f"{quote(name)} and {quote(other)} are the same cluster; remove one of them"
    seen: set[str] = set()
    least = 0
    for step in waves.steps:
        if _is_names(step):
            for name in step.split("+"):
                if name not in sites:
                    yield "waves", f"`steps` names {quote(name)}, which is none of `sites`; correct it"
                elif name in seen:
                    yield "waves", f"`steps` names {quote(name)} twice; remove one"
                seen.add(name)
            continue
        goal = int(step) if step.isdigit() else math.ceil(len(sites) * float(step[:-1]) / 100)
        if step.isdigit() and goal > len(sites):
            yield "waves", f"`steps` has {step}, and there are {len(sites)} sites; give fewer"
        elif goal < least:
            yield "waves", f"`steps` has {step} after more sites, {least}; order them from few to many"
        least = max(least, goal)
