"""The world of storms: a control plane that can be killed in parts, two operators behind proxies, and their history."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.informers.informers import TRAININGS
from fairlead.cluster.kubernetes.manifests.roles import ENGINE_DRIVER, OPERATOR, TEAM_KEEPER
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from tests.kubernetes.audit import Right, rights, token_of
from tests.kubernetes.chaos.history import KEEP_HISTORY, STORED_AS_JSON, History
from tests.kubernetes.loopback import Fault, FaultyProxy, LoseAnswer, Refuse, Say, Stall, serving
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes, is_ready
from tests.kubernetes.testcluster.processes import Server
from tests.waiting import until

SYSTEM = "fairlead-system"
NUM_NODES, GPUS = 4, 8
NUM_REPLICAS = 2
ROOT = Path(__file__).parents[3]
# They follow the API server with backoffs of up to half a minute, which no round waits for.
FOLLOWERS = ("scheduler", "controller-manager", "kwok")
FLAGS = {
    "apiserver": [STORED_AS_JSON, KEEP_HISTORY],
    # A kwok that was killed holds its nodes by their leases for 40 s; so there are none, and no run waits for them.
    "kwok": ["--node-lease-duration-seconds=0"],
    "controller-manager": ["--node-monitor-grace-period=24h"],
}
WEATHERS: dict[str, tuple[Fault, ...]] = {
    "conflicts": (Refuse(409, "Conflict"), None, None),
    "too_many": (Refuse(429, "TooManyRequests", (("Retry-After", "1"),)), Refuse(429, "TooManyRequests"), None),
    "server_errors": (Refuse(500), Refuse(503), Refuse(504), None, None),
    "lost_answers": (LoseAnswer(), None),
    "slow": (Stall(0.3), Stall(1.0), None),
}


class World:
    """Everything that storms share; one round after the other uses it.

    Attributes:
        granted: What the operators' roles let them ask.
        logs_of_pods: What the logs of pods say that have no kubelet, by the path of their namespace's pods and by name.
    """

    def __init__(
        self, plane: ControlPlane, proxies: list[FaultyProxy], urls: list[str], *, granted: set[Right]
    ) -> None:
        self.plane = plane
        self.granted = granted
        self.history = History(plane.etcd_url)
        self.client = Client(load_access((plane.kubeconfig(),)))
        self.user = WorkloadApi(self.client)
        self.logs_of_pods: dict[str, Callable[[str], str | None]] = {}
        self._proxies = proxies
        self._rng = random.Random("weather")
        self._lock = threading.Lock()
        self._weather: tuple[Fault, ...] = (None,)
        self._is_shaken = False
        self.replicas = [self._replica(number, url) for number, url in enumerate(urls)]

    def choose(self, method: str, path: str) -> Fault:
        """What the proxy does with a request in the weather of now."""
        if "watch=true" in path:
            return None
        pods, _, rest = path.partition("/pods/")
        name, _, what = rest.partition("/")
        if what.startswith("log") and f"{pods}/pods" in self.logs_of_pods:
            text = self.logs_of_pods[f"{pods}/pods"](name)
            return None if text is None else Say(text)
        with self._lock:
            return self._rng.choice(self._weather)

    def set_weather(self, name: str | None) -> None:
        """From now on requests meet these faults."""
        with self._lock:
            self._weather = (None,) if name is None else WEATHERS[name]

    def cut_watches(self) -> None:
        """Hang up on both operators."""
        for proxy in self._proxies:
            proxy.cut()

    def kill_server(self, name: str, away_s: float) -> None:
        """kill -9, and start it again on the same data and ports."""
        self.plane.kill(name)
        time.sleep(away_s)
        self.plane.restart(name)
        self._is_shaken = True

    def repair(self) -> None:
        """An end of all faults: everything runs, and all nodes are there."""
        self.set_weather(None)
        if self._is_shaken:
            for name in FOLLOWERS:
                self.plane.restart(name)
            self._is_shaken = False
        self.keep_replicas()
        self.restore_nodes()

    def keep_replicas(self) -> None:
        """Start the operators that ended, as kubelet does."""
        for replica in self.replicas:
            if replica.pid is None:
                replica.start()

    def restore_nodes(self) -> None:
        """Bring back the nodes that left."""
        there = {node["metadata"]["name"] for node in self.nodes()}
        for number in range(NUM_NODES):
            if f"n{number}-0" not in there:
                add_nodes(self.plane, 1, prefix=f"n{number}", gpus=GPUS)

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.client.items("/api/v1/nodes"))

    def logs(self) -> str:
        """The last words of the operators."""
        return "\n".join(f"--- {replica.name}\n{replica.log_tail()}" for replica in self.replicas)

    def _replica(self, number: int, url: str) -> Server:
        """An operator with the token of the installed service account and no other right."""
        token = token_of(self.client, SYSTEM, OPERATOR)
        kubeconfig = self.plane.home / f"replica-{number}.yaml"
        content = {
            "current-context": "storm",
            "contexts": [{"name": "storm", "context": {"cluster": "storm", "user": "operator"}}],
            "clusters": [{"name": "storm", "cluster": {"server": url}}],
            "users": [{"name": "operator", "user": {"token": token}}],
        }
        kubeconfig.write_text(yaml.safe_dump(content))
        argv = [sys.executable, "-m", "tests.kubernetes.chaos.replica", str(kubeconfig), SYSTEM]
        return Server(f"replica-{number}", argv, self.plane.home / f"replica-{number}.log")


@contextmanager
def a_world() -> Iterator[World]:
    """A control plane with Fairlead installed, and two operators that run."""
    worlds: list[World] = []
    with ControlPlane(flags=FLAGS, audit=True) as plane, ExitStack() as stack:
        installation = _installation()
        for each in installation:
            if each["kind"] != "Deployment":  # kwok would play its pods
                applied(plane, each)
        proxies, urls = [], []
        for _ in range(NUM_REPLICAS):
            proxy = FaultyProxy(
                plane.url,
                lambda method, path: worlds[0].choose(method, path) if worlds else None,
                ca=(plane.home / "ca.pem").read_bytes(),
            )
            proxies.append(proxy)
            urls.append(stack.enter_context(serving(proxy.handler())))
        world = World(plane, proxies, urls, granted=_granted(installation))
        until(lambda: _is_served(world.client), "the kinds")
        worlds.append(world)
        world.restore_nodes()
        until(lambda: all(is_ready(node) for node in world.nodes()), "nodes")
        world.history.start()
        world.repair()
        try:
            yield world
        finally:
            for replica in world.replicas:
                replica.kill()
            world.history.stop()


def _installation() -> list[dict[str, Any]]:
    """What is installed, by a process of its own: kinds that a test has added are in it from the start."""
    argv = [sys.executable, "-m", "fairlead.cli.main", "install", "--render", "--image", "none", "--namespace", SYSTEM]
    answer = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    return [each for each in yaml.safe_load_all(answer.stdout) if each]


def _granted(installation: list[dict[str, Any]]) -> set[Right]:
    roles = [each for each in installation if each["metadata"]["name"] in (OPERATOR, TEAM_KEEPER, ENGINE_DRIVER)]
    return rights(rule for each in roles for rule in each.get("rules", ()))


def _is_served(client: Client) -> bool:
    try:
        client.get(TRAININGS)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True
