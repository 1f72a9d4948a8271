"""The training loop of an in-place elastic run: ``for step in run.steps(...)`` with ``with step:`` around its body.

A step whose collective fails because a rank is gone is not applied: gradients, buffers and random generators are
restored, the remaining ranks form a new group, agree on the newest step that any of them has applied, and compute the
next one with the same total samples. A rank that returns is taken in between two steps.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairlead.runtime.elastic.group import EpochGroup, move_to_group
from fairlead.runtime.elastic.membership import Epoch, Membership
from fairlead.runtime.elastic.state_transfer import broadcast_state
from fairlead.runtime.errors import AgreementFailed, Misuse

REFORM_WITHIN_S = 60.0
# A killed rank is detected within milliseconds of the collective that fails because of it.
SEEN_WITHIN_S = 2.0
# All ranks have read a plan by then, as no rank is more than one step ahead of the first member.
STEPS_AHEAD = 2


class Host(Protocol):
    """The part of the run that the loop uses.

    Attributes:
        trust: State that comes from another rank may hold objects of any class.
    """

    trust: bool

    def look(self) -> None:
        """Raise the exception that a stop notice requires."""

    def settle(self) -> None:
        """Close everything that uses the group that ends."""

    def reformed(self, place: int, num_members: int, step: int) -> None:
        """Continue with another number of ranks; collective."""

    def tell(self, kind: str, message: str) -> None:
        """Record an event of the run."""

    def checkpoint(self, step: int) -> None:
        """Save a checkpoint if one is due; collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Samples that a rank computes in one forward and backward pass.

    Attributes:
        samples: Their indices in the batch of the step.
        weight: Factor for their mean loss, with which the ranks' averaged gradients are those of the mean over the
        batch.
    """

    samples: range
    weight: float


class TrainingStep:
    """One training step; use it as a context manager around everything that belongs to the step.

    Attributes:
        number: Steps completed before it.
        samples: The indices, within the batch, of the samples that this rank computes.
    """

    def __init__(self, number: int, samples: range, batch: int, micro_batch: int | None, loop: "Steps") -> None:
        self.number = number
        self.samples = samples
        self._batch = batch
        self._micro_batch = micro_batch
        self._loop = loop
        self.entered = False

    def parts(self, model: nn.Module) -> Iterator[Part]:
        """Yield this rank's samples in parts of at most ``micro_batch``; gradients are reduced with the last part."""
        most = self._micro_batch or len(self.samples)
        starts = range(0, len(self.samples), most)
        for start in starts:
            samples = self.samples[start : start + most]
            waits = isinstance(model, DistributedDataParallel) and start != starts[-1]
            weight = len(samples) * self._loop.num_members / self._batch
            with model.no_sync() if waits else contextlib.nullcontext():  # type: ignore[operator] # of DDP
                yield Part(samples=samples, weight=weight)

    def __enter__(self) -> "TrainingStep":
        self.entered = True
        self._loop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._loop.end(error)


class Steps:
    """Steps of a run with fixed ranks, from the newest checkpoint to the last step.

    Attributes:
        num_members: Number of ranks among which a batch is divided.
    """

    def __init__(
        self, *, place: int, num_members: int, start: int, total: int, batch: int, micro_batch: int | None, host: Host
    ) -> None:
        if batch < num_members:
            raise Misuse(f"a batch of {batch} samples for {num_members} ranks; give at least one for each rank")
        self.num_members = num_members
        self._place = place
        self._step = start
        self._total = total
        self._batch = batch
        self._micro_batch = micro_batch
        self._host = host

    def __iter__(self) -> Iterator[TrainingStep]:
        while self._step < self._total:
            yield from self._one()

    def begin(self) -> None:
        """Store the state that a step changes before it is applied."""

    def end(self, error: BaseException | None) -> bool:
        """Complete the step and return whether the error is handled."""
        if error is None:
            self._step += 1
            self._host.checkpoint(self._step)
        return False

    def _one(self) -> Iterator[TrainingStep]:
        """Yield the next step, which the loop's body has to enter.

        Raises:
            Misuse: The body did not enter the step.
        """
        step = TrainingStep(self._step, self._own_samples(), self._batch, self._micro_batch, self)
        yield step
        if not step.entered:
            raise Misuse("a step of run.steps() has to be entered; put its body into `with step:`")

    def _own_samples(self) -> range:
        """Return this rank's share of the batch, which is divided as evenly as possible."""
        least, more = divmod(self._batch, self.num_members)
        first = self._place * least + min(self._place, more)
        return range(first, first + least + (self._place < more))


class ElasticSteps(Steps):
    """Steps of a run whose ranks may leave and join, from the newest state of all of them to the last step."""

    def __init__(
        self,
        *,
        membership: Membership,
        group: EpochGroup,
        rank: int,
        world_size: int,
        state: Mapping[str, Any],
        has_state: bool,
        start: int,
        total: int,
        batch: int,
        micro_batch: int | None,
        host: Host,
    ) -> None:
        super().__init__(
            place=rank,
            num_members=world_size,
            start=start,
            total=total,
            batch=batch,
            micro_batch=micro_batch,
            host=host,
        )
        self._membership = membership
        self._group = group
        self._rank = rank
        self._world_size = world_size
        self._state = {name: value for name, value in state.items() if value is not None}
        self._modules = [value for value in self._state.values() if isinstance(value, nn.Module)]
        self._has_state = has_state
        self._has_met = False
        self._broken_at: float | None = None
        self._is_applied = False
        self._before: Callable[[], None] = lambda: None
        for value in self._state.values():
            if isinstance(value, torch.optim.Optimizer):
                value.register_step_post_hook(self._applied)

    def __iter__(self) -> Iterator[TrainingStep]:
        self._reform(time.monotonic())
        while self._step < self._total:
            if self._broken_at is not None or self._is_due():
                self._reform(time.monotonic() if self._broken_at is None else self._broken_at)
                continue
            yield from self._one()

    def begin(self) -> None:
        """Store the state that a step changes before it is applied."""
        self._is_applied = False
        self._group.is_in_use = True
        buffers = [(item, item.detach().clone()) for module in self._modules for item in module.buffers()]
        random = torch.get_rng_state()

        def back() -> None:
            with torch.no_grad():
                for item, saved in buffers:
                    item.copy_(saved)
            torch.set_rng_state(random)

        self._before = back

    def end(self, error: BaseException | None) -> bool:
        """Complete the step, or undo it if a rank is gone; return whether the error is handled."""
        try:
            return self._end(error)
        finally:
            self._group.is_in_use = False

    def _end(self, error: BaseException | None) -> bool:
        if error is None:
            self._step += 1
            try:
                self._host.checkpoint(self._step)
            except AgreementFailed as failed:
                if not self._is_by_others():
                    raise
                self._break(failed)
            return True
        if not isinstance(error, RuntimeError | AgreementFailed | ConnectionError) or not self._is_by_others():
            return False
        if self._is_applied:
            self._step += 1
        else:
            self._before()
        for module in self._modules:
            module.zero_grad(set_to_none=True)
        self._break(error)
        return True

    def _applied(self, *_: object) -> None:
        self._is_applied = True

    def _break(self, error: BaseException) -> None:
        # The traceback keeps the step's objects alive, among them the process group that has to be destroyed.
        error.__traceback__ = None
        self._broken_at = time.monotonic()
        self._group.abort()

    def _is_by_others(self) -> bool:
        """Return whether a member is gone or already waits for another epoch, so that this program is not the cause.

        The same holds when this rank cannot learn of that, as it is cut off.
        """
        deadline, membership = time.monotonic() + SEEN_WITHIN_S, self._membership
        while not membership.lost_members() and not membership.has_left() and not membership.is_cut_off:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _is_due(self) -> bool:
        """Return whether returned ranks are taken in before this step; the first member plans that ahead."""
        membership = self._membership
        if membership.is_whole:
            return False
        at = membership.resize_at()
        if at is None and self._rank == membership.epoch.members[0] and membership.newcomers():
            membership.plan_resize(self._step + STEPS_AHEAD)
        return at is not None and self._step >= at

    def _reform(self, began: float) -> None:
        """Form the next epoch and bring all members to one state."""
        before = self._membership.epoch
        self._host.settle()
        deadline = began + REFORM_WITHIN_S
        while True:
            left_s = max(deadline - time.monotonic(), 1.0)
            epoch = self._membership.next_epoch(self._group.host, within_s=left_s, check=self._host.look)
            if epoch is None:
                # A rank without any state must not run the program's code after its last step.
                raise SystemExit(0)
            try:
                self._group.form(epoch, self._rank)
                self._group.is_in_use = True
                self._meet(epoch.members.index(self._rank))
                break
            except (RuntimeError, AgreementFailed):
                if not self._is_by_others() or time.monotonic() > deadline:
                    raise
                self._group.abort()
            finally:
                self._group.is_in_use = False
        self._broken_at = None
        self.num_members = len(epoch.members)
        self._tell(before, epoch, time.monotonic() - began)

    def _meet(self, place: int) -> None:
        """Bring all members to the state of the most advanced one; collective."""
        for module in self._modules:
            move_to_group(module)
        own = torch.tensor([self._step if self._has_state else -1, int(self._has_met)])
        gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, own)
        reached = [int(report[0]) for report in gathered]
        newest = max(reached)
        source = reached.index(newest)
        if not any(bool(report[1]) for report in gathered):
            # State that is specific to a rank, such as a data loader's position, is not replaced.
            shared = {k: v for k, v in self._state.items() if isinstance(v, nn.Module | torch.optim.Optimizer)}
            broadcast_state(shared, source, takes=place != source, trust=self._host.trust)
        elif min(reached) < newest:
            broadcast_state(self._state, source, takes=reached[place] < newest, trust=self._host.trust)
        self._has_state = self._has_met = True
        self._place, self._step = place, newest
        self._group.opening(lambda: self._host.reformed(place, len(reached), newest))

    def _tell(self, before: Epoch, now: Epoch, seconds: float) -> None:
        """Record the change of members, on the first member that was there before."""
        if self._rank != next((r for r in now.members if before.tokens.get(r) == now.tokens[r]), None):
            return
        lost_members = [rank for rank, token in before.tokens.items() if rank not in now.tokens]
        again = [rank for rank, token in before.tokens.items() if now.tokens.get(rank, token) != token]
        came = [rank for rank in now.members if rank not in before.tokens]
        size = f"{len(now.members)} of {self._world_size} ranks go on in place"
        after = f"after step {self._step}, {seconds:.2f} s later, {self._batch} samples a step as before"
        if lost_members or again:
            back = f" and {_ranks(again)} back already" if again else ""
            self._host.tell("RankLost", f"{_ranks(sorted({*lost_members, *again}))} gone{back}; {size} {after}.")
        if came:
            self._host.tell("RankReturned", f"{_ranks(came)} back; {size} {after}.")


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks))} are"
