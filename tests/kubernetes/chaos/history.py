"""Everything that was ever stored of pods and runs, in its one true order, and what must hold at every instant of it.

It is read from etcd itself, whose watch leaves no state out; that of an API server loses its place whenever the server
is killed. The API server has to store JSON for it (`STORED_AS_JSON`), and to keep all history (`KEEP_HISTORY`).
"""

import base64
import json
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import urllib3

STORED_AS_JSON = "--storage-media-type=application/json"
KEEP_HISTORY = "--etcd-compaction-interval=0"
PODS, TRAININGS = "/registry/pods/", "/registry/fairlead.dev/trainings/"
# kube-scheduler's refusal is waited out for 3 s; one that takes over waits for a Lease of 3 s; the API server is away
# for 3 s, and clients come back to it after backoffs of up to 5 s.
PARTIAL_MOST_S = 30.0
MOST_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPod:
    """A pod of a run, as it is stored."""

    name: str
    uid: str
    run_uid: str
    attempt: int
    index: int
    phase: str
    node: str
    is_leaving: bool

    @property
    def is_live(self) -> bool:
        """Whether something of it may run, now or later."""
        return self.phase not in ("Succeeded", "Failed")


class History:
    """Follows etcd in a thread of its own.

    Attributes:
        wrongs: What must never be, and was.
        second_pods: Members of one start that had two pods, one after the other.
    """

    def __init__(self, etcd_url: str) -> None:
        self.wrongs: list[str] = []
        self.second_pods: list[str] = []
        self._url = f"{etcd_url}/v3/watch"
        self._pool = urllib3.PoolManager(retries=False)
        self._next = 1
        self._lock = threading.Lock()
        self._pods: dict[str, StoredPod] = {}
        self._sizes: dict[str, int] = {}
        self._made: dict[tuple[str, int, int], set[str]] = defaultdict(set)
        self._bound: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._partial: dict[tuple[str, int], float] = {}
        self._told: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=MOST_LINES))
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, name="history", daemon=True)

    def start(self) -> None:
        """Begin with the first revision."""
        self._thread.start()

    def stop(self) -> None:
        """End with the next thing that happens, or soon."""
        self._is_over = True
        self._thread.join(timeout=5.0)

    def check(self) -> list[str]:
        """What was wrong until now, gangs that still are partial included."""
        with self._lock:
            for gang in list(self._partial):
                self._end_partial(gang, still=True)
            return list(self.wrongs)

    def story(self, run_uid: str) -> str:
        """What happened to a run and its pods lately."""
        with self._lock:
            return "\n    ".join(self._told.get(run_uid, ()))

    def _follow(self) -> None:
        while not self._is_over:
            try:
                self._watch()
            except (urllib3.exceptions.HTTPError, OSError):  # etcd is away; what it stores meanwhile is nothing
                time.sleep(0.05)

    def _watch(self) -> None:
        start, end = (base64.b64encode(key.encode()).decode() for key in ("/registry/", "/registry0"))
        wish = {"create_request": {"key": start, "range_end": end, "start_revision": str(self._next)}}
        timeout = urllib3.Timeout(connect=1.0, read=2.0)
        answer = self._pool.request(
            "POST", self._url, body=json.dumps(wish).encode(), preload_content=False, timeout=timeout
        )
        buffer = b""
        try:
            for chunk in answer.stream(65_536):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    self._take(json.loads(line)["result"])
                if self._is_over:
                    return
        finally:
            answer.close()

    def _take(self, result: dict[str, Any]) -> None:
        assert not result.get("compact_revision"), "history was lost"
        now = time.monotonic()
        with self._lock:
            for event in result.get("events", ()):
                pair = event["kv"]
                key = base64.b64decode(pair["key"]).decode()
                self._next = int(pair["mod_revision"]) + 1
                content = json.loads(base64.b64decode(pair["value"])) if event.get("type") != "DELETE" else None
                if key.startswith(PODS):
                    self._pod(key, content, now)
                elif key.startswith(TRAININGS) and content is not None:
                    self._training(content)

    def _training(self, content: dict[str, Any]) -> None:
        uid, status = content["metadata"]["uid"], content.get("status") or {}
        self._sizes[uid] = int(content["spec"].get("nodes", 1))
        line = f"run is {status.get('phase')} {status.get('attempt')} {status.get('message')}"
        told = self._told[uid]
        if not any(old.endswith(line) for old in list(told)[-1:]):
            told.append(f"{self._next - 1} {_clock()} {line}")

    def _pod(self, key: str, content: dict[str, Any] | None, now: float) -> None:
        before = self._pods.pop(key, None)
        pod = None if content is None else _read(content)
        if pod is not None:
            self._pods[key] = pod
        last = pod or before
        if last is None:
            return
        what = f"{last.phase} on {last.node or 'no node'}{', leaving' if last.is_leaving else ''}" if pod else "gone"
        self._told[last.run_uid].append(f"{self._next - 1} {_clock()} pod {last.name} {what}")
        if pod is not None:
            self._check_ranks(pod)
        self._check_gang(last, now)

    def _check_ranks(self, pod: StoredPod) -> None:
        made = self._made[(pod.run_uid, pod.attempt, pod.index)]
        if made and pod.uid not in made:
            self.second_pods.append(f"{pod.name} of {pod.run_uid}")
        made.add(pod.uid)
        live = [
            each
            for each in self._pods.values()
            if each.run_uid == pod.run_uid and each.index == pod.index and each.is_live
        ]
        if len(live) > 1 and pod.is_live:
            self.wrongs.append(f"{len(live)} live pods of one rank: {live}; run {pod.run_uid}")

    def _check_gang(self, pod: StoredPod, now: float) -> None:
        gang = (pod.run_uid, pod.attempt)
        here = [each for each in self._pods.values() if (each.run_uid, each.attempt) == gang]
        self._bound[gang] |= {each.index for each in here if each.node}
        holds = any(each.node and each.is_live for each in here)
        if holds and len(self._bound[gang]) < self._sizes.get(pod.run_uid, 1):
            self._partial.setdefault(gang, now)
        elif gang in self._partial:
            self._end_partial(gang, still=False)

    def _end_partial(self, gang: tuple[str, int], *, still: bool) -> None:
        took_s = time.monotonic() - self._partial[gang]
        if not still:
            del self._partial[gang]
        if took_s > PARTIAL_MOST_S:
            self.wrongs.append(f"start {gang[1]} of run {gang[0]} held places in part for {took_s:.1f} s")


def _read(content: dict[str, Any]) -> StoredPod | None:
    metadata, labels = content["metadata"], content["metadata"].get("labels") or {}
    owners: list[dict[str, Any]] = metadata.get("ownerReferences") or []
    owner = next((each for each in owners if each.get("controller")), {})
    if owner.get("kind") != "Training":
        return None
    return StoredPod(
        name=metadata["name"],
        uid=metadata["uid"],
        run_uid=owner["uid"],
        attempt=int(labels["fairlead.dev/attempt"]),
        index=int(labels["fairlead.dev/index"]),
        phase=(content.get("status") or {}).get("phase", "Pending"),
        node=content["spec"].get("nodeName") or "",
        is_leaving="deletionTimestamp" in metadata,
    )


def _clock() -> str:
    now = time.time()
    return time.strftime("%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}"
