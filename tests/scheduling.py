"""Hands test files to the workers of pytest-xdist: the longest first, and as often as a worker dies.

A file stays with one worker, as with ``--dist loadfile``, which this takes the place of. That one hands out files by
their number of tests, so that a long one may begin last; and once a worker has died near the end, it waits for ever.
Files that share what is costly to set up stay with a few workers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SECONDS_OF_A_TEST = {
    "test_two_nodes.py": 150.0,
    "test_readme.py": 40.0,
    "test_real_pods.py": 35.0,
    "test_real_faces.py": 30.0,
    "test_real_runs.py": 30.0,
    "test_growing.py": 20.0,
    "test_hostile.py": 30.0,
    "test_sweeps.py": 30.0,
    "test_least_privilege.py": 20.0,
    "test_real_nodes.py": 15.0,
    "test_sentences.py": 15.0,
    "test_reaching.py": 10.0,
    "test_gang.py": 4.0,
    "test_parallelize.py": 8.0,
    "test_s3.py": 4.0,
    "test_session_torch.py": 3.0,
    "test_exact.py": 3.0,
    "test_faces.py": 3.0,
    "test_installation.py": 8.0,
    "chaos": 10.0,
    "kubernetes": 1.5,
    "docs": 1.0,
    "cli": 0.6,
    "cluster": 0.4,
}
"""By file or folder, for the order alone and only until a file is recorded: what makes few tests long is not seen."""

SECONDS_OF_ANY_TEST = 0.1

SHARE_NOTHING = ("tests/simulation/test_one_instant.py",)
"""Files that take long and whose tests share no fixture: each test of them goes to whichever worker is free."""


@dataclass(frozen=True)
class SetUp:
    """What tests of many files share and each worker sets up for itself.

    Args:
        used: Found in the files of those tests.
        workers: So many have it while others have something else to do.
        seconds: What one costs, before and all the while it is there.
        at_most: Whether no other worker ever has it, even where it would have nothing else to do.
    """

    used: re.Pattern[str]
    workers: int
    seconds: float
    at_most: bool = False


SET_UPS = {
    # A control plane, containerd and kubelets, which take a third of a processor while they do nothing; with four of
    # them at once what runs on them takes so long that tests give up.
    "real nodes": SetUp(re.compile(r"\bRealCluster\("), 2, 25.0, at_most=True),
    # Five servers, of which the API server alone takes five seconds of a processor to start.
    "control plane": SetUp(
        re.compile(r"\b(?:plane: ControlPlane|access: Access|cluster: WorkloadApi|namespace: str)\b"), 3, 40.0
    ),
    "torch": SetUp(re.compile(r"torch_or_skip\(\)|from tests\.runtime\.gang import"), 2, 10.0),
}


@dataclass(frozen=True)
class Part:
    """Tests that go to one worker together."""

    tests: list[int]
    seconds: float
    set_up: str | None = None


class Worker(Protocol):
    """What is needed of an xdist ``WorkerController``."""

    @property
    def shutting_down(self) -> bool: ...

    def send_runtest_some(self, indices: Sequence[int]) -> None: ...

    def shutdown(self) -> None: ...


class LongestFirst:
    """A scheduler of pytest-xdist (its ``Scheduling`` protocol).

    A worker runs a test only once it knows the next one or that there is none, so it always has two or the news that
    nothing comes any more. Of a worker that dies, the test that it ran has failed; the others go to the next worker.

    Args:
        num_workers: How many collect the tests before the first is handed out.
        seconds: How long each file took before.
        set_up_of: What the tests of a file share, of ``SET_UPS``.
        is_over: Whether nothing more is handed out; a worker ends the file that it has.

    Attributes:
        left: Tests that were not handed out for that reason.
    """

    def __init__(
        self,
        num_workers: int,
        seconds: Mapping[str, float],
        set_up_of: Callable[[str], str | None] = lambda _: None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._num_workers = num_workers
        self._seconds = seconds
        self._set_up_of = set_up_of
        self._is_over = is_over
        self.left: list[str] = []
        self._tests: Sequence[str] = ()
        self._waiting: list[Part] | None = None
        self._handed_out: dict[Worker, list[int]] = {}
        self._ready: list[Worker] = []
        self._has: dict[str, list[Worker]] = {name: [] for name in SET_UPS}

    @property
    def nodes(self) -> list[Worker]:
        return list(self._handed_out)

    @property
    def collection_is_completed(self) -> bool:
        return self._waiting is not None or len(self._ready) >= self._num_workers

    @property
    def tests_finished(self) -> bool:
        return self._waiting == [] and all(len(tests) < 2 for tests in self._handed_out.values())

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting) or any(self._handed_out.values())

    def add_node(self, node: Worker) -> None:
        self._handed_out[node] = []

    def add_node_collection(self, node: Worker, collection: Sequence[str]) -> None:
        if self._tests and list(collection) != list(self._tests):
            raise RuntimeError("the workers have found different tests; names must not depend on chance or time")
        self._tests = collection
        self._ready.append(node)

    def schedule(self) -> None:
        if self._waiting is None:
            self._waiting = by_file(self._tests, self._seconds, self._set_up_of)
        for node in self._ready:
            self._feed(node)

    def mark_test_complete(self, node: Worker, item_index: int, duration: float = 0) -> None:
        self._handed_out[node].remove(item_index)
        self._feed(node)

    def mark_test_pending(self, item: str) -> None:
        self._put_back([self._tests.index(item)])

    def remove_pending_tests_from_node(self, node: Worker, indices: Sequence[int]) -> None:
        raise AssertionError("no worker is asked to give tests back")

    def remove_node(self, node: Worker) -> str | None:
        left = self._handed_out.pop(node)
        if node in self._ready:
            self._ready.remove(node)
        for owners in self._has.values():
            if node in owners:
                owners.remove(node)
        if not left:
            return None
        self._put_back(left[1:])
        return self._tests[left[0]]

    def _put_back(self, tests: list[int]) -> None:
        """Have them run before all else, by any worker: those that have what they need may be gone."""
        assert self._waiting is not None
        if tests:
            self._waiting.insert(0, Part(tests, 0.0))
        for node in self._ready:
            self._feed(node)

    def _feed(self, node: Worker) -> None:
        if node.shutting_down:
            return
        assert self._waiting is not None
        if self._waiting and self._is_over():
            self.left += [self._tests[index] for part in self._waiting for index in part.tests]
            self._waiting.clear()
        while len(self._handed_out[node]) < 2:
            part = self._next_for(node)
            if part is None:
                node.shutdown()
                return
            self._waiting.remove(part)
            if part.set_up is not None and node not in self._has[part.set_up]:
                self._has[part.set_up].append(node)
            self._handed_out[node] += part.tests
            node.send_runtest_some(part.tests)
        if not self._waiting:
            node.shutdown()

    def _next_for(self, node: Worker) -> Part | None:
        """The longest part for which the worker has what it needs or may set it up, or for which that pays."""
        assert self._waiting is not None
        has = {name for name, owners in self._has.items() if node in owners}
        for part in self._waiting:
            if part.set_up is None or part.set_up in has or (not has and self._has_too_few(part.set_up)):
                return part
        return next((part for part in self._waiting if part.set_up is not None and self._pays(part.set_up)), None)

    def _has_too_few(self, set_up: str) -> bool:
        return len(self._has[set_up]) < SET_UPS[set_up].workers

    def _pays(self, set_up: str) -> bool:
        """Whether those that have it would be busy for longer than another needs to have it too."""
        assert self._waiting is not None
        owners = self._has[set_up]
        if owners and SET_UPS[set_up].at_most:
            return False
        left = sum(part.seconds for part in self._waiting if part.set_up == set_up)
        return not owners or left / len(owners) > SET_UPS[set_up].seconds


def by_file(
    tests: Sequence[str], seconds: Mapping[str, float], set_up_of: Callable[[str], str | None] = lambda _: None
) -> list[Part]:
    """The tests of each file, of the longest file first; the tests of some files stand alone."""
    files: dict[str, list[int]] = {}
    for index, test in enumerate(tests):
        files.setdefault(file_of(test), []).append(index)
    parts = []
    for file, own in files.items():
        expected = _expected(file, own, seconds)
        if file in SHARE_NOTHING:
            parts += [Part([index], expected / len(own)) for index in own]
        else:
            parts.append(Part(own, expected, set_up_of(file)))
    return sorted(parts, key=lambda part: -part.seconds)


def set_up_of(path: Path) -> str | None:
    """What the tests of a file share with those of others, as far as its text shows."""
    text = path.read_text()
    return next((name for name, each in SET_UPS.items() if each.used.search(text)), None)


def file_of(test: str) -> str:
    """The file of a test, by the test's name."""
    return test.partition("::")[0]


def _expected(file: str, tests: Sequence[int], seconds: Mapping[str, float]) -> float:
    folders = file.split("/")
    each = next((rate for folder, rate in SECONDS_OF_A_TEST.items() if folder in folders), SECONDS_OF_ANY_TEST)
    return seconds.get(file, each * len(tests))
