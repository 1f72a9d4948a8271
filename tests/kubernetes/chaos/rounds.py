"""One round: runs of all kinds, what their users do, faults of everything at random instants, then the reckoning."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fairlead.cluster.kubernetes.api.client import ApiError, Object, Unreachable
from fairlead.cluster.kubernetes.manifests import driver_bundle, runtime_bundle, team_views
from fairlead.errors import NameTaken
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Retry, Training
from fairlead.state.snapshot import Intent
from tests.kubernetes.audit import RESTRICTED
from tests.kubernetes.chaos.reckoning import Wish, problems_of
from tests.kubernetes.chaos.world import GPUS, World
from tests.waiting import until

SETTLE_S = 90.0
FEWEST_NODES = 2  # a gang that does not fit on all that is left can never fit, and fails
GIB = 1024**3
FAULTS = (
    *("kill_operator",) * 4, *("kill_apiserver", "kill_etcd") * 2, *("delete_pod",) * 4, "kill_pod", "evict_pod",
    *("delete_node",) * 3, *("cut_watches",) * 2, *("weather",) * 3,
)  # fmt: skip
DEEDS = ("submit", "submit", "stop", "suspend", "resume", "delete", "replace")


@dataclass(slots=True)
class Round:
    """A round in progress.

    Attributes:
        wishes: What was asked for last of each run, by the uid of the run.
        told: What was done, for the message of a failure.
    """

    settle_s: ClassVar[float] = SETTLE_S

    seed: int
    world: World
    namespace: str
    rng: random.Random
    wishes: dict[str, Wish] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    begun_at: float = field(default_factory=time.monotonic)

    def storm(self) -> None:
        """Runs, and then trouble."""
        for _ in range(self.rng.randint(2, 4)):
            self.submit()
        for _ in range(self.rng.randint(3, 6)):
            time.sleep(self.rng.uniform(0.02, 0.8))
            name = self.rng.choice(FAULTS if self.rng.random() < 0.6 else DEEDS)
            self._tell(name)
            getattr(self, name)()
        self.world.repair()
        for wish in list(self.wishes.values()):
            if wish.intent is Intent.SUSPEND and self.rng.random() < 0.7:
                self._ask(wish, Intent.RUN)

    def settle(self) -> None:
        """Wait until all is as it should be."""
        found: list[str] = []

        def is_well() -> bool:
            self.world.keep_replicas()
            found[:] = problems_of(self.world.client, self.namespace, self.wishes.values())
            return not found

        self._await(is_well, found)
        self._check_history()

    def clear(self) -> None:
        """Delete every run, and wait until nothing of them is left."""
        for wish in self.wishes.values():
            if wish.intent is not Intent.DELETE:
                self._ask(wish, Intent.DELETE)
        left: list[str] = []

        def is_empty() -> bool:
            self.world.keep_replicas()
            left[:] = self._left()
            return not left

        self._await(is_empty, left)
        self._check_history()
        self.world.client.delete(f"/api/v1/namespaces/{self.namespace}")

    # What users do.

    def submit(self, name: str | None = None) -> None:
        """A gang that ends by itself, or one that does not."""
        rng = self.rng
        ends = rng.random() < 0.6
        fakes = {"fake/start": f"{rng.choice((0, 100, 700))}ms"}
        if ends:
            fakes["fake/run"] = f"{rng.choice((500, 1500, 3000))}ms"
        if rng.random() < 0.5:
            fakes["fake/stop"] = f"{rng.choice((300, 1000))}ms"
        gpus = rng.choice((1, 2, 4, 8))
        spec = Training(
            name=name or f"r{len(self.wishes)}",
            team=self.namespace,
            run="work",
            nodes=rng.choice([size for size in (1, 2, 2, 3, 4, 6) if size <= FEWEST_NODES * (GPUS // gpus)]),
            resources=Resources(cpu_milli=1000, memory_bytes=GIB, gpu=GpuRequest(milli=1000 * gpus)),
            retry=Retry(infrastructure=1000, program=0, backoff_s=0.1, max_backoff_s=0.4),
            grace_s=2.0,
            kubernetes=overlay({"metadata": {"annotations": fakes}}),
        )
        run = self.world.user.submit(spec)
        self.wishes[run.uid] = Wish(run=run, ends=ends)

    def stop(self) -> None:
        self._ask_any(Intent.STOP)

    def suspend(self) -> None:
        self._ask_any(Intent.SUSPEND)

    def resume(self) -> None:
        self._ask_any(Intent.RUN)

    def delete(self) -> None:
        self._ask_any(Intent.DELETE)

    def replace(self) -> None:
        """Delete a run, and submit one of the same name as soon as that is free."""
        wish = self._ask_any(Intent.DELETE)
        if wish is None:
            return
        for _ in range(100):
            try:
                self.submit(wish.run.spec.name)
            except NameTaken:  # the name is not free yet
                time.sleep(0.05)
            else:
                return

    # What breaks.

    def kill_operator(self) -> None:
        """kill -9 of one of the two, or of both; they come back after a while."""
        world = self.world
        victims = world.replicas if self.rng.random() < 0.3 else [self.rng.choice(world.replicas)]
        for victim in victims:
            victim.kill()
        if self.rng.random() < 0.7:
            time.sleep(self.rng.uniform(0.0, 0.6))
            for victim in victims:
                victim.start()

    def kill_apiserver(self) -> None:
        self.world.kill_server("apiserver", self.rng.uniform(0.0, 0.5))

    def kill_etcd(self) -> None:
        self.world.kill_server("etcd", self.rng.uniform(0.0, 1.0))

    def delete_pod(self) -> None:
        self._end_pod({})

    def kill_pod(self) -> None:
        """As `kubectl delete --force`."""
        self._end_pod({"gracePeriodSeconds": 0})

    def evict_pod(self) -> None:
        """As a drain does."""
        for name in self._pods():
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            self._try("POST", f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction", eviction)

    def delete_node(self) -> None:
        """One leaves the cluster; it may be back at once, or only at the end."""
        nodes = [node["metadata"]["name"] for node in self.world.nodes()]
        if len(nodes) > FEWEST_NODES:
            self._try("DELETE", f"/api/v1/nodes/{self.rng.choice(sorted(nodes))}", None)
        if self.rng.random() < 0.3:
            self.world.restore_nodes()

    def cut_watches(self) -> None:
        self.world.cut_watches()

    def weather(self) -> None:
        """Requests go wrong for a while, or until the end."""
        name = self.rng.choice(("conflicts", "too_many", "server_errors", "lost_answers", "slow"))
        self._tell(name)
        self.world.set_weather(name)

    def _end_pod(self, options: dict[str, Any]) -> None:
        for name in self._pods():
            self._try("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}", options)

    def _pods(self) -> list[str]:
        """One pod at random, if there are any."""
        pods = self.world.client.items(f"/api/v1/namespaces/{self.namespace}/pods")
        names = sorted(pod["metadata"]["name"] for pod in pods)
        return [self.rng.choice(names)] if names else []

    def _try(self, method: str, path: str, body: Object | None) -> None:
        try:
            self.world.client.request(method, path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            self._tell(f"{error.status}")

    def _ask_any(self, intent: Intent) -> Wish | None:
        asked = [wish for wish in self.wishes.values() if wish.intent is not Intent.DELETE]
        if not asked:
            return None
        wish = self.rng.choice(asked)
        self._ask(wish, intent)
        return wish

    def _ask(self, wish: Wish, intent: Intent) -> None:
        self._tell(f"{intent.value} {wish.run.spec.name}")
        self.world.user.set_intent(wish.run.uid, intent)
        wish.intent = intent
        wish.was_stopped = wish.was_stopped or intent is Intent.STOP

    def _left(self) -> list[str]:
        """What is in the namespace but for what belongs there."""
        place = f"namespaces/{self.namespace}"
        paths = {kind: f"/api/v1/{place}/{kind}" for kind in ("pods", "services", "configmaps", "secrets")}
        paths["networkpolicies"] = f"/apis/networking.k8s.io/v1/{place}/networkpolicies"
        paths["trainings"] = f"/apis/fairlead.dev/v1alpha1/{place}/trainings"
        return [
            f"{kind}/{item['metadata']['name']}"
            for kind, path in paths.items()
            for item in self.world.client.items(path)
            if item["metadata"]["name"]
            not in ("kube-root-ca.crt", runtime_bundle.bundle_name(), driver_bundle.bundle_name(), team_views.NAME)
        ]

    def _await(self, is_so: Callable[[], bool], found: list[str]) -> None:
        def is_seen_so() -> bool:
            try:
                return is_so()
            except Unreachable as error:  # a busy machine; only that it lasts is wrong
                found[:] = [str(error)]
                return False

        try:
            until(is_seen_so, "calm", timeout_s=self.settle_s)
        except AssertionError as error:
            raise AssertionError(self._story("\n".join(found))) from error

    def _check_history(self) -> None:
        wrongs = self.world.history.check()
        assert not wrongs, self._story("\n".join(wrongs))

    def _tell(self, what: str) -> None:
        self.told.append(f"{time.monotonic() - self.begun_at:.2f} {what}")

    def _story(self, wrong: str) -> str:
        runs = "\n".join(
            f"{wish.run.spec.name} ({wish.run.uid}, wanted {wish.intent}):\n    {self.world.history.story(uid)}"
            for uid, wish in self.wishes.items()
        )
        return f"round {self.seed}: {wrong}\n{self.told}\n{runs}\n{self.world.logs()}"


def begin(seed: int, world: World) -> Round:
    """A round with a namespace of its own."""
    namespace = begin_in(f"storm-{seed}", world)
    return Round(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace))


def begin_in(namespace: str, world: World) -> str:
    """Make the namespace of a round."""
    world.client.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": RESTRICTED}})
    world.plane.await_namespace(namespace)
    return namespace
