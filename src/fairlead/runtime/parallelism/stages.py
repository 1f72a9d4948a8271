"""Reduces a model to one stage of a pipeline. The model's own forward runs on each stage, so it is not rewritten.

A stage keeps its blocks. The first stage keeps the modules that forward calls before the blocks, the last those after
them, and all stages keep modules without parameters, such as rotary angles. On the other stages the modules before the
blocks return the output of the previous stage, and forward ends after the last block with that block's output.
Parameters that the first and last stage share (tied embeddings) are on both, and their gradients are summed.

See decision 57.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.blocks import Blocks
from fairlead.runtime.parallelism.plan import ParallelPlan


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Return the indices of a stage's blocks; the first stages have one more if the blocks do not divide evenly."""
    size, more = divmod(layers, stages)
    first = stage * size + min(stage, more)
    return range(first, first + size + (stage < more))


@dataclass(slots=True)
class Received:
    """Holds the output of the previous stage while a micro-batch is computed."""

    hidden: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """A stage to which a model was reduced.

    Attributes:
        index: Index of the stage, from 0.
        count: Number of stages.
        has_tied: Whether the first and last stage share parameters.
        tied: Names of those that this stage has. They are names because FSDP replaces the parameter objects.
    """

    index: int
    count: int
    has_tied: bool = False
    tied: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        """True for the last stage, which computes the loss."""
        return self.index == self.count - 1


def cut(
    model: nn.Module,
    blocks: Blocks,
    index: int,
    count: int,
    plan: ParallelPlan | None,
    *,
    precision: torch.dtype | None = None,
) -> ModelStage:
    """Remove the other stages' parts from the model, and make its forward compute this stage.

    Args:
        precision: The dtype of computation; None for that of the parameters.

    Raises:
        Misuse: The model has too few blocks, or parameters that cannot be assigned to one stage.
    """
    container = blocks.container
    if container is None or len(blocks.modules) < count:
        raise Misuse(
            f"run.parallelize() found {len(blocks.modules)} blocks for {count} stages; give it a "
            "fairlead.ParallelPlan with `blocks`, or fewer stages"
        )
    before, after = _around(model, blocks, plan)
    _refuse_shared(model, blocks, before, after)
    tied_ids = _ids(before.values()) & _ids(after.values())
    tied = tuple(
        f"{path}.{name}"
        for path, module in before.items()
        for name, item in module.named_parameters()
        if id(item) in tied_ids
    )
    received = Received()
    names = list(container._modules)
    own = layers_of(index, count, len(names))
    for number, name in enumerate(names):
        if number not in own:
            del container._modules[name]
    if index > 0:
        for path, module in before.items():
            shared_ids = tied_ids if index == count - 1 else set[int]()
            _replace(model, path, _Before(received, module, shared_ids, precision))
        first: nn.Module = next(container.children())
        # Runs before FSDP's own hook, which prepares gradients for the block's actual inputs.
        first.register_forward_pre_hook(_giving(received), prepend=True, with_kwargs=True)
    if index < count - 1:
        for path in after:
            _replace(model, path, _Absent(path))
        container.add_module("end_of_stage", _End())
    _enter_by(model, received, is_first=index == 0)
    own_tied = tied if index in (0, count - 1) else ()
    return ModelStage(index=index, count=count, has_tied=bool(tied), tied=own_tied)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """A whole model of fake tensors, from which the tensors between stages are determined.

    Attributes:
        model: A copy of the model from before it was reduced.
        path: Names of attributes from the model to its blocks.
        count: Number of stages.
        index: The stage of this rank.
        precision: The dtype of computation; None for that of the parameters.
    """

    model: nn.Module
    path: tuple[str, ...]
    count: int
    index: int
    precision: torch.dtype | None

    def ends(self, inputs: Any) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the stage's input from the previous stage, None for the first, and its output."""
        blocks = list(self.model.get_submodule(".".join(self.path)).children())
        own = layers_of(self.index, self.count, len(blocks))
        seen: dict[int, torch.Tensor] = {}

        def watching(number: int) -> Any:
            def watch(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                seen[number] = args[0] if args else next(iter(kwargs.values()))

            return watch

        hooks = [
            blocks[number].register_forward_pre_hook(watching(number), with_kwargs=True)
            for number in (own.start, own.stop)
            if number < len(blocks)
        ]
        output = as_tensor(call(self.model, inputs))
        for hook in hooks:
            hook.remove()
        received = None if self.index == 0 else self._like(seen[own.start])
        return received, self._like(seen.get(own.stop, output))

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor.detach(), dtype=self.precision or tensor.dtype).requires_grad_()


def as_tensor(output: Any) -> torch.Tensor:
    """Return the tensor of a model's output: the output itself, its ``logits``, or its first element.

    Raises:
        Misuse: The output has no tensor there.
    """
    if isinstance(output, torch.Tensor):
        return output
    tensor = getattr(output, "logits", None)
    if tensor is None and isinstance(output, Mapping):
        tensor = next(iter(output.values()), None)
    if tensor is None and isinstance(output, (tuple, list)) and output:
        tensor = output[0]
    if not isinstance(tensor, torch.Tensor):
        raise Misuse(f"the model gives a {type(output).__name__} without a tensor; have it return one, or `logits`")
    return tensor


def call(forward: Any, inputs: Any) -> Any:
    """Call with a tensor, or with the items of a mapping as keyword arguments."""
    return forward(**inputs) if isinstance(inputs, Mapping) else forward(inputs)


def _around(
    model: nn.Module, blocks: Blocks, plan: ParallelPlan | None
) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Return the largest modules with parameters before and after the blocks, by path."""
    before: dict[str, nn.Module] = {}
    after: dict[str, nn.Module] = {}
    at: Any = model
    for depth, step in enumerate(blocks.path):
        if next(at.parameters(recurse=False), None) is not None:
            name = next(iter(dict(at.named_parameters(recurse=False))))
            raise Misuse(
                f"{'.'.join((*blocks.path[:depth], name))} is a parameter beside the blocks, which no stage can be "
                "given; put it into a module, or give `parallel.pipeline: 1`"
            )
        modules = before
        for name, child in at.named_children():
            if name == step:
                modules = after
            elif next(child.parameters(), None) is not None:
                modules[".".join((*blocks.path[:depth], name))] = child
        at = getattr(at, step)
    for path in plan.before if plan else ():
        before[path] = _taken(after, path, "before")
    for path in plan.after if plan else ():
        after[path] = _taken(before, path, "after")
    return before, after


def _taken(where: dict[str, nn.Module], path: str, what: str) -> nn.Module:
    if path not in where:
        raise Misuse(f"the plan's `{what}` names {path}; it can be one of {', '.join(where) or 'none'}")
    return where.pop(path)


def _refuse_shared(model: nn.Module, blocks: Blocks, before: dict[str, nn.Module], after: dict[str, nn.Module]) -> None:
    """Refuse parameters that blocks share with each other or with the rest, as these may be on other stages."""
    seen = _ids(before.values()) | _ids(after.values())
    for number, block in enumerate(blocks.modules):
        own = _ids([block])
        if own & seen:
            raise Misuse(f"block {number} shares parameters with others, which no stage can be given alone")
        seen |= own


def _ids(modules: Any) -> set[int]:
    return {id(item) for module in modules for item in module.parameters()}


def _replace(model: nn.Module, path: str, module: nn.Module) -> None:
    *above, name = path.split(".")
    setattr(model.get_submodule(".".join(above)), name, module)


class _Before(nn.Module):
    """Replaces a module before the blocks: returns the output of the previous stage."""

    def __init__(self, received: Received, module: nn.Module, tied: set[int], precision: torch.dtype | None) -> None:
        super().__init__()
        self._received = received
        # Models read attributes such as dtype from modules: a copy on the meta device still has them, with the dtype of
        # computation. With another dtype, a model would cast its inputs, such as images, back to that.
        hollow: dict[int, Any] = {id(item): item.detach().to("meta") for item in module.buffers()}
        for item in module.parameters():
            dtype = precision if item.is_floating_point() else None
            hollow[id(item)] = nn.Parameter(item.detach().to("meta", dtype), requires_grad=False)
        for name, item in list(module.named_parameters()):
            if id(item) not in tied:
                continue
            # Registered under its own name, by which a checkpoint has it once and optimizers know it.
            *path, last = name.split(".")
            at: nn.Module = self
            for step in path:
                if step not in at._modules:
                    at.add_module(step, nn.Module())
                at = at.get_submodule(step)
            at.register_parameter(last, item)
        self.__dict__["_hollow"] = copy.deepcopy(module, hollow)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__.get("_hollow"), name)

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        assert self._received.hidden is not None
        return self._received.hidden


class _Absent(nn.Module):
    """Replaces a module after the blocks on every stage but the last."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        raise Misuse(
            f"forward goes through {self._path} before the blocks, though it is registered after them; name it in "
            "`before` of a fairlead.ParallelPlan"
        )


class _Ended(Exception):
    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


class _End(nn.Module):
    """Follows the last block of a stage and ends forward."""

    def forward(self, *positional: Any, **named: Any) -> torch.Tensor:
        raise _Ended(positional[0] if positional else next(iter(named.values())))


def _giving(received: Received) -> Any:
    def give(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (received.hidden, *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: received.hidden}

    return give


def _enter_by(model: nn.Module, received: Received, *, is_first: bool) -> None:
    """Make the model's forward take the previous stage's output, unless it is the first, and the step's inputs."""
    whole = model.forward

    def forward(*hidden: torch.Tensor, inputs: Any = None) -> torch.Tensor:
        if inputs is None:
            raise Misuse(
                "this model is a stage of a pipeline, which needs the others; run.forward_backward() computes its steps"
            )
        if not is_first:
            (received.hidden,) = hidden
        try:
            return as_tensor(call(whole, inputs))
        except _Ended as end:
            return end.hidden
        finally:
            received.hidden = None

    # An attribute of the module, so that neither its class nor the names in its state change.
    model.forward = forward
