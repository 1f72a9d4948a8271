"""An endpoint that an engine serves: which revision that is given, and what is told of it."""

from dataclasses import dataclass, field, replace

from fairlead.policy.kinds.parents import judge_parents
from fairlead.policy.serving.routes import routes
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.engine_endpoints import EngineEndpoint
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import status
from tests.policy.carrying_out import carried_out


def spec(**changes: str) -> Serving:
    keys = {"run": "serve $PORT", "image": "i", "engine": "knative", **changes}
    (found,) = parse("\n".join(["kind: Serving", "name: chat", *(f"{key}: {value}" for key, value in keys.items())]))
    assert isinstance(found, Serving)
    return found


@dataclass
class World:
    """An endpoint, and what its engine says of it; whatever is decided is done at once."""

    serving: Workload[Serving]
    now: float = 1_000_000.0
    told: EngineEndpoint | None = None
    events: list[str] = field(default_factory=list)

    def look(self, **told: object) -> None:
        """Judge what the engine says, until nothing is to be done."""
        self.told = replace(self.told or EngineEndpoint(kind="Service"), **told)  # type: ignore[arg-type]
        for _ in range(5):
            self.now += 1.0
            (change,) = judge_parents(self.snapshot(), self.now) or (None,)
            if change is None:
                return
            effect = carried_out(self.serving, change, self.now)
            assert effect.after is not None
            assert not effect.submitted
            self.serving = effect.after
            if effect.event is not None:
                self.events.append(f"{effect.event.type}: {effect.event.reason.message}")
        raise AssertionError("it does not come to rest")

    def snapshot(self) -> Snapshot:
        told = {} if self.told is None else {"parent": self.told}
        return Snapshot(nodes=(), workloads=(), pods=(), parents=(self.serving,), engine_endpoints=told)

    def change(self, spec: Serving) -> None:
        self.serving = replace(self.serving, spec=spec, version=self.serving.version + 1)

    @property
    def phase(self) -> Phase:
        return self.serving.status.phase

    @property
    def says(self) -> str:
        return self.serving.status.reason.message


def world(**changes: str) -> World:
    first = status(Phase.PENDING)
    return World(
        Workload(uid="parent", spec=spec(**changes), intent=Intent.RUN, status=first, version=1, created_at=0.0)
    )


def serving(**changes: str) -> World:
    """One whose first revision is ready."""
    found = world(**changes)
    found.look()
    found.look(is_there=True, applied_revision="r1", ready=True, url="http://chat", replicas=1)
    return found


def test_it_is_handed_over_and_serves_once_the_engine_says_so() -> None:
    there = world()
    there.look()
    assert there.serving.status.phase is Phase.RUNNING
    assert there.says == "r1 is handed to Knative, which serves it"
    there.look(is_there=True, applied_revision="r1", message="Revision chat-r1 has no image")
    assert there.says == "r1 is not ready at Knative: Revision chat-r1 has no image"
    assert detail_of(there.serving).serving is None
    there.look(ready=True, url="http://chat", replicas=1, message="")
    assert there.says == "r1 is ready at Knative with 1 replica"
    assert (detail_of(there.serving).serving, detail_of(there.serving).url) == (1, "http://chat")
    assert [each.partition(":")[0] for each in there.events] == ["RolloutStarted", "RevisionReady"]


def test_a_revision_that_is_not_ready_in_its_time_goes_and_the_one_before_is_given_again() -> None:
    there = serving(ready_within="60s")
    there.change(spec(run="broken", ready_within="60s"))
    there.look()
    assert detail_of(there.serving).target == 2
    there.look(applied_revision="r2", ready=False, message="its container exits with 1")
    there.now += 60.0
    there.look()
    detail = detail_of(there.serving)
    assert (detail.target, detail.serving, detail.asked) == (1, 1, 2)
    assert any(
        "the rollout of r2 failed and r1 keeps serving" in each and "exits with 1" in each for each in there.events
    )
    there.look(applied_revision="r1", ready=True, message="")
    assert "r2 was given up" in there.says


def test_what_the_engine_says_of_another_revision_is_not_taken_for_the_one_that_is_asked_for() -> None:
    there = serving()
    there.change(spec(run="other"))
    there.look()
    assert detail_of(there.serving).serving == 1
    assert there.says == "Knative has yet to say that r2 is ready"


def test_a_canary_has_its_weight_until_it_is_left_out_and_another_weight_is_told() -> None:
    canary = "{steps: [10%]}"
    there = serving(canary=canary)
    there.change(spec(run="other", canary=canary))
    there.look(applied_revision="r2", ready=True)
    trial = detail_of(there.serving).canary
    assert trial is not None
    assert there.says == "r2 is ready and gets 10.0% of the requests, r1 the others"
    there.now += 10_000_000.0  # no clock and no count ends it
    there.look()
    assert detail_of(there.serving).canary == trial
    there.change(spec(run="other", canary="{steps: [30%]}"))
    there.look()
    assert there.events[-1].startswith("CanaryStep: r2 gets 30.0%")
    there.change(spec(run="other"))
    there.look()
    assert (detail_of(there.serving).canary, detail_of(there.serving).serving) == (None, 2)
    assert there.events[-1].startswith("CanaryPromoted")


def test_a_canary_is_taken_back_by_the_spec_before_it() -> None:
    there = serving(canary="{steps: [10%]}")
    there.change(spec(run="other", canary="{steps: [10%]}"))
    there.look(applied_revision="r2", ready=True)
    there.change(spec(canary="{steps: [10%]}"))
    there.look(applied_revision="r1", ready=True)
    detail = detail_of(there.serving)
    assert (detail.target, detail.canary) == (1, None)


def test_a_stop_waits_until_the_object_is_gone() -> None:
    there = serving()
    there.serving = replace(there.serving, intent=Intent.STOP)
    there.look()
    assert there.phase.value == "Stopping"
    assert there.says == "stopped on request; waiting for its Service to be deleted"
    there.look(is_there=False)
    assert there.phase.value == "Stopped"


def test_none_of_its_requests_come_by_our_gateway() -> None:
    there = serving()
    assert routes(there.snapshot(), {}, {})["services"] == {}


def test_it_sleeps_where_it_may() -> None:
    there = serving(replicas="0..3")
    there.look(replicas=0)
    assert there.says == "r1 sleeps at Knative; the next request wakes it"
