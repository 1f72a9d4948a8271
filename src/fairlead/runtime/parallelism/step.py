"""Computes forward and backward of a step under every split: micro-batches, pipeline schedules and the mean loss."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.parallelize import AppliedSplit
from fairlead.runtime.parallelism.stages import as_tensor, call

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

Loss = Callable[[torch.Tensor, Any], torch.Tensor]


class ParallelStep:
    """Computes losses and gradients of a parallelized model."""

    def __init__(self, applied: AppliedSplit, *, is_given: bool) -> None:
        """Create the groups of ranks that a step needs; collective.

        Args:
            is_given: Whether the spec sets the number of samples of a step.
        """
        self._applied = applied
        self._is_given = is_given
        self._schedules: dict[int, tuple[Loss, PipelineScheduleSingle]] = {}
        # If other stages are simulated, the sizes of their outputs are known only once the step's inputs are.
        is_late = applied.stage is None or applied.preview is not None
        self._stage = None if is_late else self._pipeline_stage()
        self._tied_group = self._tie()

    def forward_backward(self, inputs: Any, targets: Any, loss: Loss) -> torch.Tensor:
        """Accumulate the gradients of a step's samples and return the mean loss over all replicas, on every rank.

        Raises:
            Misuse: The inputs are not tensors, or their number of samples does not fit the split.
        """
        parts = self._micro_batches(inputs, targets)
        mean = (
            self._through_pipeline(parts, loss) if self._applied.stage is not None else self._accumulated(parts, loss)
        )
        mesh, split = self._applied.mesh, self._applied.split
        if mesh is None:
            return mean
        counts = mesh["tensor"].get_local_rank() == 0 and (self._applied.stage is None or self._applied.stage.is_last)
        total = mean / split.data if counts else torch.zeros_like(mean)
        dist.all_reduce(total)
        return total

    def clip_gradients(self, most: float) -> torch.Tensor:
        """Scale gradients down to a norm over all parameters of the model and return the norm before."""
        parameters = [item for item in self._applied.module.parameters() if item.grad is not None]
        stage = self._applied.stage
        counted_elsewhere = set() if stage is None or stage.index == 0 else {id(item) for item in self._tied()}
        device = self._applied.device
        whole = torch.zeros((), device=device)
        groups: dict[Any, torch.Tensor] = {}
        for item in parameters:
            if id(item) in counted_elsewhere:
                continue
            gradient: Any = item.grad
            mesh = getattr(gradient, "device_mesh", None)
            if mesh is None:
                whole += gradient.float().square().sum()
                continue
            # Along a mesh dimension over which it is not sharded, every rank has all of it.
            over = tuple(dim for dim, place in enumerate(gradient.placements) if not place.is_replicate())
            key = (mesh, over)
            groups[key] = groups.get(key, torch.zeros((), device=device)) + gradient.to_local().float().square().sum()
        for (mesh, over), part in groups.items():
            for dim in over:
                dist.all_reduce(part, group=mesh.get_group(dim))
            whole += part
        if stage is not None and self._applied.mesh is not None:
            dist.all_reduce(whole, group=self._applied.mesh.get_group("pipeline"))
        norm = whole.sqrt()
        scale = torch.clamp(most / (norm + 1e-6), max=1.0)
        for item in parameters:
            assert item.grad is not None
            item.grad.mul_(scale.to(item.grad.dtype))
        return norm

    def _micro_batches(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        split = self._applied.split
        count = split.micro_batches
        num_samples = _samples(inputs)
        wanted = count * split.micro_batch
        if (self._is_given and num_samples != wanted) or num_samples % count:
            raise Misuse(
                f"run.forward_backward() was given {num_samples} samples; "
                f"the split has {count} x {split.micro_batch} = {wanted} on each replica and step"
            )
        if _samples(targets) != num_samples:
            raise Misuse(f"run.forward_backward() was given {num_samples} samples and {_samples(targets)} targets")
        return list(zip(_chunks(inputs, count), _chunks(targets, count), strict=True))

    def _accumulated(self, parts: list[tuple[Any, Any]], loss: Loss) -> torch.Tensor:
        module: Any = self._applied.module
        total: torch.Tensor | None = None
        for number, (inputs, targets) in enumerate(parts):
            is_last = number == len(parts) - 1
            waits = isinstance(module, DistributedDataParallel) and not is_last
            with module.no_sync() if waits else contextlib.nullcontext():
                value = loss(as_tensor(call(module, inputs)), targets) / len(parts)
                value.backward()
            total = value.detach() if total is None else total + value.detach()
        assert total is not None
        return total

    def _through_pipeline(self, parts: list[tuple[Any, Any]], loss: Loss) -> torch.Tensor:
        stage = self._applied.stage
        assert stage is not None
        if self._stage is None:
            self._stage = self._pipeline_stage(parts[0][0])
        schedule = self._schedule(len(parts), loss)
        losses: list[torch.Tensor] = []
        schedule.step(
            kwarg_mbs=[{"inputs": inputs} for inputs, _ in parts],
            target_mbs=[targets for _, targets in parts] if stage.is_last else None,
            losses=losses if stage.is_last else None,
            return_outputs=False,
        )
        for item in self._tied():
            gradient: Any = item.grad
            if gradient is not None:
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                dist.all_reduce(local, group=self._tied_group)
        if not stage.is_last:
            return torch.zeros((), device=self._applied.device)
        return torch.stack([value.detach().float() for value in losses]).mean()

    def _schedule(self, count: int, loss: Loss) -> "PipelineScheduleSingle":
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        schedule = self._schedules.get(count)
        if schedule is not None and schedule[0] is loss:
            return schedule[1]
        assert self._stage is not None
        # The 1F1B schedule keeps fewer micro-batches in memory, but needs at least as many as there are stages.
        kind = Schedule1F1B if count >= self._applied.split.pipeline else ScheduleGPipe
        made = kind(self._stage, n_microbatches=count, loss_fn=loss)
        self._schedules[count] = (loss, made)
        return made

    def _pipeline_stage(self, inputs: Any = None) -> "PipelineStage":
        """Return the stage for torch's schedules, which query the other stages' outputs unless these are simulated.

        Args:
            inputs: The inputs of a micro-batch; only needed if other stages are simulated.
        """
        from torch.distributed.pipelining import PipelineStage

        applied, stage = self._applied, self._applied.stage
        assert stage is not None
        assert applied.mesh is not None
        device = torch.device(applied.device)
        if applied.device == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        group = applied.mesh.get_group("pipeline")
        known: dict[str, Any] = {}
        if applied.preview is not None:
            from fairlead.runtime.parallelism import tracing

            assert tracing.tracer is not None
            with tracing.tracer.live.paused():
                receives, gives = applied.preview.ends(inputs)
            known = {"input_args": () if receives is None else (receives,), "output_args": (gives,)}
        return PipelineStage(applied.module, stage.index, stage.count, device, group=group, **known)

    def _tied(self) -> list[nn.Parameter]:
        """Return the parameters that the first and last stage share; none on other stages."""
        stage, module = self._applied.stage, self._applied.module
        whole = module.module if isinstance(module, DistributedDataParallel) else module
        return [] if stage is None else [whole.get_parameter(name) for name in stage.tied]

    def _tie(self) -> Any:
        """Return the group of the first and last stage if they share parameters, and broadcast their initial values."""
        stage, mesh, split = self._applied.stage, self._applied.mesh, self._applied.split
        if stage is None or mesh is None or not stage.has_tied:
            return None
        own: Any = None
        size = split.data * split.tensor
        for first in range(size):
            ranks = [first, (split.pipeline - 1) * size + first]
            group: Any = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                own = group
                for item in self._tied():
                    tensor: Any = item.data
                    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                    dist.broadcast(local, src=first, group=group)
        return own


def _samples(value: Any) -> int:
    leaf = next(iter(value.values())) if isinstance(value, Mapping) else value
    if not isinstance(leaf, torch.Tensor):
        raise Misuse(
            f"run.forward_backward() was given a {type(leaf).__name__}; give tensors whose first dimension is "
            "the samples, or a dict of them"
        )
    return len(leaf)


def _chunks(value: Any, count: int) -> Iterable[Any]:
    if not isinstance(value, Mapping):
        chunks: Iterable[Any] = value.chunk(count)
        return chunks
    parts = {name: item.chunk(count) for name, item in value.items()}
    return [{name: items[number] for name, items in parts.items()} for number in range(count)]
