"""Queues to judge decisions by: builders, strategies, and choosers with one mistake each."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from fairlead.policy.gpu.stage_interleaving import StageProfile, speeds
from fairlead.policy.selection.grouping import Grouping
from fairlead.policy.selection.jobs import Job, JobGroup, Sharable
from fairlead.policy.selection.knapsack import choose
from fairlead.policy.selection.worth import worth

NUM_GPUS = 8
packings = Grouping(speeds)

Chooser = Callable[[Sequence[Job]], tuple[JobGroup, ...]]

LOADING = StageProfile(iteration_s=0.50, stages_s=(0.45, 0.01, 0.0))
COMPUTING = StageProfile(iteration_s=0.43, stages_s=(0.001, 0.41, 0.02))
MIXED = StageProfile(iteration_s=0.21, stages_s=(0.08, 0.08, 0.07))
PROFILES = (LOADING, COMPUTING, MIXED)


def job(uid: str = "a", num_gpus: int = 1, remaining_s: float = 100.0, profile: StageProfile | None = LOADING) -> Job:
    sharable = Sharable(kind=profile) if profile else None
    return Job(uid=uid, num_gpus=num_gpus, remaining_s=remaining_s, sharable=sharable)


@st.composite
def queues(draw: st.DrawFn, max_size: int = 14) -> tuple[Job, ...]:
    """Jobs of sizes that do and do not divide the devices, some larger than all of them, some without a profile."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from((1, 2, 3, 4, 8, 16)),
                st.floats(min_value=0.0, max_value=1e7, allow_nan=False),
                st.sampled_from((*PROFILES, None)),
            ),
            max_size=max_size,
        )
    )
    return tuple(job(str(index), size, left_s, profile) for index, (size, left_s, profile) in enumerate(drawn))


def alone(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    return choose(queue, NUM_GPUS)


def together(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    return choose(queue, NUM_GPUS, packings)


def gain(group: JobGroup) -> float:
    """Worth x speed of a group, from the definitions."""
    if len(group.jobs) == 1:
        return worth(group.jobs[0])
    profiles = [member.sharable.kind for member in group.jobs if member.sharable is not None]
    pairs = zip(group.jobs, speeds(profiles), strict=True)
    return sum(worth(member) * speed for member, speed in pairs)


def in_order(queue: Sequence[Job], num_gpus: int, order: Callable[[Job], float]) -> tuple[JobGroup, ...]:
    """Greedily down an order, skipping what does not fit."""
    groups, free = [], num_gpus
    for each in sorted(queue, key=order):
        if each.num_gpus <= free:
            free -= each.num_gpus
            groups.append(JobGroup(jobs=(each,)))
    return tuple(groups)


def one_device_too_many(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    return choose(queue, NUM_GPUS + 1)


def longest_first(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    return in_order(queue, NUM_GPUS, lambda each: -each.remaining_s)


def densest_first(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    return in_order(queue, NUM_GPUS, lambda each: each.num_gpus * each.remaining_s)


def head_of_line(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    """First come first served; nobody passes one that does not fit."""
    groups, free = [], NUM_GPUS
    for each in queue:
        if each.num_gpus > free:
            break
        free -= each.num_gpus
        groups.append(JobGroup(jobs=(each,)))
    return tuple(groups)


def always_in_pairs(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    """Whoever runs takes along the next one of its size, whether it gains or not."""
    groups: list[JobGroup] = []
    for group in densest_first(queue):
        first, taken = group.jobs[0], {member.uid for made in groups for member in made.jobs}
        if first.uid in taken:
            continue
        fellows = [
            each
            for each in queue
            if each.num_gpus == first.num_gpus
            and each.uid not in taken | {first.uid}
            and each.sharable
            and first.sharable
        ]
        groups.append(JobGroup(jobs=(first, *fellows[:1])))
    return tuple(groups)


def twice(queue: Sequence[Job]) -> tuple[JobGroup, ...]:
    groups = densest_first(queue)
    return groups + groups[:1] if sum(group.num_gpus for group in groups) < NUM_GPUS / 2 else groups
