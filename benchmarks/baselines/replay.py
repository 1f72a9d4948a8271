"""Replays a trace under a policy that is asked afresh at every arrival, completion and moment that it named itself.

Groups are placed greedily in the policy's order, skipping what does not fit: up to a node's GPUs on the first node that
has room, larger gangs on whole nodes. Two accounts of what preemption costs:

- ``published``: at every event each running job loses its group's overhead from its progress since the last one, never
  below zero; a job whose completion is the event is complete. With it SRTF and SRSF give Muri's figures to the second.
- ``resumed``: only a job that starts, resumes or changes company pays, before it progresses. Moves between nodes are
  free.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from benchmarks.baselines.muri import GPUS_PER_NODE, NUM_NODES, Figures, Submitted
from fairlead.policy.gpu.stage_interleaving import speeds
from fairlead.policy.selection.jobs import Job, JobGroup, Sharable

_SAME_MOMENT_S = 1e-6


class Account(StrEnum):
    """Who pays for preemption."""

    PUBLISHED = "published"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Groups in the order in which they are placed, and when to ask again if nothing happens before."""

    groups: tuple[JobGroup, ...]
    wake_s: float = math.inf


class Policy(Protocol):
    """Answers for a queue in order of submission; may keep a memory, and is then good for one replay."""

    def __call__(self, queue: Sequence[Job], num_gpus: int, now: float) -> Answer:
        """Who runs from now on."""


class Estimator(Protocol):
    """What is known of a job's remaining work; sees nothing but what had happened."""

    def remaining_s(self, job: Submitted, done_s: float) -> float:
        """Estimated seconds still needed alone, after ``done_s`` of them."""

    def completed(self, job: Submitted) -> None:
        """The job is over: its whole work is known from now on."""


class Known:
    """An oracle: the true remaining work."""

    def remaining_s(self, job: Submitted, done_s: float) -> float:
        """What the trace says."""
        return job.work_s - done_s

    def completed(self, job: Submitted) -> None:
        """It knew."""


@dataclass(slots=True)
class _State:
    """A job on its way."""

    job: Submitted
    left_s: float
    done_s: float = 0.0
    held_s: float = 0.0
    speed: float = 0.0
    overhead_s: float = 0.0
    debt_s: float = 0.0
    company: frozenset[str] = field(default_factory=frozenset)
    shown: Job | None = None


def replay(
    trace: Sequence[Submitted],
    policy: Policy,
    *,
    account: Account = Account.PUBLISHED,
    estimator: Estimator | None = None,
) -> Figures:
    """Figures of the whole trace."""
    arrivals = sorted(trace, key=lambda job: job.submitted_s)
    known = estimator or Known()
    queue: dict[str, _State] = {}
    running: list[_State] = []
    jcts_s: list[float] = []
    now, wake_s, next_arrival = 0.0, math.inf, 0
    while next_arrival < len(arrivals) or queue:
        arrival_s = arrivals[next_arrival].submitted_s if next_arrival < len(arrivals) else math.inf
        completion_s = now + min((_needs_s(state) for state in running), default=math.inf)
        event_s = min(arrival_s, completion_s, wake_s)
        assert math.isfinite(event_s), "nothing runs and nothing comes"
        for state in [state for state in running if now + _needs_s(state) <= event_s + _SAME_MOMENT_S]:
            running.remove(state)
            del queue[state.job.uid]
            known.completed(state.job)
            jcts_s.append(event_s - state.job.submitted_s)
        for state in running:
            _advance(state, event_s - now, account)
        now = event_s
        while next_arrival < len(arrivals) and arrivals[next_arrival].submitted_s <= now:
            job = arrivals[next_arrival]
            queue[job.uid] = _State(job, job.work_s)
            next_arrival += 1
        if not queue:
            running, wake_s = [], math.inf
            continue
        answer = policy([_show(state, known) for state in queue.values()], NUM_NODES * GPUS_PER_NODE, now)
        running = _start(_place(answer.groups), queue, account)
        wake_s = answer.wake_s
    return _figures(jcts_s, now)


def _needs_s(state: _State) -> float:
    return state.debt_s + state.left_s / state.speed


def _advance(state: _State, elapsed_s: float, account: Account) -> None:
    if account is Account.PUBLISHED:
        effective_s = max(0.0, elapsed_s - state.overhead_s)
    else:
        paid_s = min(state.debt_s, elapsed_s)
        state.debt_s -= paid_s
        effective_s = elapsed_s - paid_s
    progress_s = effective_s * state.speed
    state.left_s -= progress_s
    state.done_s += progress_s
    state.held_s += elapsed_s
    state.shown = None


def _show(state: _State, known: Estimator) -> Job:
    """What the policy sees; kept while nothing about the job can have changed."""
    if state.shown is None or not isinstance(known, Known):
        state.shown = Job(
            uid=state.job.uid,
            num_gpus=state.job.num_gpus,
            remaining_s=known.remaining_s(state.job, state.done_s),
            attained_s=state.held_s,
            done_s=state.done_s,
            sharable=Sharable(kind=state.job.profile),
        )
    return state.shown


def _place(groups: Sequence[JobGroup]) -> list[JobGroup]:
    """The groups that find room, each tried once."""
    free = [GPUS_PER_NODE] * NUM_NODES
    placed = []
    for group in groups:
        size = group.num_gpus
        if size <= GPUS_PER_NODE:
            nodes = [index for index, room in enumerate(free) if room >= size][:1]
            wanted = 1
        else:
            wanted = math.ceil(size / GPUS_PER_NODE)
            nodes = [index for index, room in enumerate(free) if room == GPUS_PER_NODE][:wanted]
        if len(nodes) < wanted:
            continue
        for index in nodes:
            free[index] -= min(size, GPUS_PER_NODE)
        placed.append(group)
    return placed


def _start(placed: Sequence[JobGroup], queue: dict[str, _State], account: Account) -> list[_State]:
    """States of the jobs that run from now on; each job is asked for once at most."""
    running = []
    for group in placed:
        members = [queue[job.uid] for job in group.jobs]
        company = frozenset(state.job.uid for state in members)
        overhead_s = sum(state.job.overhead_s for state in members)
        for state, speed in zip(members, speeds([state.job.profile for state in members]), strict=True):
            state.speed, state.overhead_s = speed, overhead_s
            if account is Account.RESUMED and state.company != company:
                state.debt_s = overhead_s
            state.company = company
            running.append(state)
    names = {state.job.uid for state in running}
    assert len(names) == len(running), "a job is in two groups"
    for uid, state in queue.items():
        if uid not in names:
            state.company, state.debt_s = frozenset(), 0.0
    return running


def _figures(jcts_s: list[float], makespan_s: float) -> Figures:
    ordered = sorted(jcts_s)
    return Figures(
        average_jct_s=sum(ordered) / len(ordered),
        p99_jct_s=ordered[int(0.99 * len(ordered))],
        makespan_s=makespan_s,
    )
