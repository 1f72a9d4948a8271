"""A kind that Fairlead does not come with: a parent of three runs, one after another. This file is all that it takes.

``FAIRLEAD_KINDS=tests.relay`` makes it known to a process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, cast

from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.parents import advance, failed, finish, running, submit
from fairlead.policy.kinds.record import Family, ParentKind
from fairlead.specs.constraints import NAME, enforce
from fairlead.specs.field_types import Single, Tag
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.key import Key, SameKey, broken
from fairlead.specs.training import DEFAULT_TEAM, Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase, Workload

LEGS = ("first", "second", "third")


def _read_leg(text: str) -> Training:
    """A command, or a whole run as its JSON, which is what a person would not write."""
    if not text.startswith("{"):
        return Training(name="leg", run=text, grace_s=5.0)
    try:
        return cast(Training, from_json(text))
    except InvalidSpec as error:
        raise ValueError(str(error)) from error


def _write_leg(leg: Training) -> str:
    return leg.run if leg == _read_leg(leg.run) else to_json(leg)


_COMMAND = Single(
    what="a command",
    tags=frozenset({Tag.TEXT}),
    parse=_read_leg,
    render=_write_leg,
    schema={"type": "string"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Three runs of one command; each knows which one it is by ``LEG``."""

    kind: ClassVar[str] = "Relay"

    name: Annotated[str, Key("name", rule=NAME, example="relay", metadata="name"), "Lower-case letters and dashes."]
    leg: Annotated[Training, Key("leg", _COMMAND, example="echo $LEG"), "The command."]
    team: Annotated[str, SameKey(Training, "team"), "Whose it is."] = DEFAULT_TEAM
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        enforce(broken(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How far a relay is."""

    legs: tuple[str, ...] = ()


def judge(relay: Workload[Relay], family: Family, now: float) -> Change | None:
    """Submit the next run when all before it have succeeded."""
    ran: list[str] = []
    for name in LEGS:
        child = family.children.get(name)
        if child is None:
            order = submit(relay, name, replace(relay.spec.leg, env={**relay.spec.leg.env, "LEG": name}))
            return advance(relay, running(order.spec.name), now, detail=Ran(legs=tuple(ran)), submit=(order,))
        if child.status.phase is Phase.SUCCEEDED:
            ran.append(name)
        elif child.status.phase.is_final:
            return finish(relay, family, Phase.FAILED, failed(child), now)
        else:
            return advance(relay, running(child.spec.name), now, detail=Ran(legs=tuple(ran)))
    reason = Reason(code=Code.COMPLETED, message="all runs succeeded")
    return finish(relay, family, Phase.SUCCEEDED, reason, now, detail=Ran(legs=LEGS))


def map_runs(spec: Relay, of: Callable[[Training], Training]) -> Relay:
    """Replace its one description of a run."""
    return replace(spec, leg=of(spec.leg))


def progress(relay: Workload[Relay]) -> str:
    """Tell how many of its runs are over."""
    ran = relay.status.detail
    return f"{len(ran.legs) if isinstance(ran, Ran) else 0}/{len(LEGS)}"


KIND = ParentKind(spec=Relay, detail=Ran, judge=judge, map_runs=map_runs, progress=progress)
