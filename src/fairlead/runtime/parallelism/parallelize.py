"""Applies the split of a run to a model with PyTorch's own features.

These are DDP, FSDP2, tensor parallel layers, pipeline stages, recomputation and mixed precision. The tensor parts of
one replica are adjacent ranks. The stages of a pipeline are as far apart as possible, since they communicate least.
"""

import contextlib
import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.blocks import find_blocks
from fairlead.runtime.parallelism.plan import ParallelPlan
from fairlead.runtime.parallelism.split import ParallelSplit

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.checkpoint import SelectiveCheckpointContext

    from fairlead.runtime.parallelism.stages import FakeModel, ModelStage

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedSplit:
    """A split that has been applied to a model.

    Attributes:
        module: The module to train: the model itself, reduced to its stage, or DDP around it.
        device: The device type on which the ranks compute.
        precision: The dtype of computation; None for that of the parameters.
        mesh: The ranks by ``pipeline``, ``data`` and ``tensor``; None for one rank.
        stage: The stage of the pipeline; None without a pipeline.
        preview: Determines the tensors between stages when the other stages are only simulated.
    """

    module: "torch.nn.Module"
    split: ParallelSplit
    device: str
    precision: "torch.dtype | None"
    mesh: "DeviceMesh | None"
    stage: "ModelStage | None"
    preview: "FakeModel | None" = None


def parallelize(
    model: "torch.nn.Module",
    split: ParallelSplit,
    device: str,
    *,
    plan: ParallelPlan | None = None,
    precision: Precision | None = None,
    traced: bool = False,
) -> AppliedSplit:
    """Apply a split to a model.

    Call it on every rank, after the process group and before the optimizer is created.

    Args:
        device: The device type on which the ranks compute, such as ``cuda`` or ``cpu``.
        plan: The places at which the model can be divided; None to find them by its structure.
        precision: None for bf16 on GPUs and fp32 elsewhere.
        traced: Whether tensors are fake and other ranks are only simulated.

    Raises:
        Misuse: The model has no layers or blocks that can be divided this way, or there is no process group.
    """
    import torch
    import torch.distributed as dist

    if precision not in (None, "fp32", "bf16"):
        raise Misuse(f"precision is {precision!r}; give 'fp32' or 'bf16'")
    half = torch.bfloat16 if (precision or ("bf16" if device == "cuda" else "fp32")) == "bf16" else None
    blocks = find_blocks(model, plan.blocks if plan else None)
    if split.tensor > 1 and split.data > 1 and split.shard == "none":
        raise Misuse(
            "run.parallelize() copies no tensor parallel layers; give `parallel.shard: gradients`, it takes less memory"
        )
    ranks = split.data * split.tensor * split.pipeline
    config: Any = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        # The cache of keys and values is for generation: training does not read it, and a stage lacks those of others.
        config.use_cache = False
    if ranks == 1:
        _compute_in(half, blocks.modules, model)
        _recompute(blocks.modules, split.recompute)
        return AppliedSplit(module=model, split=split, device=device, precision=half, mesh=None, stage=None)
    if not dist.is_initialized():
        raise Misuse("run.parallelize() needs the process group; call torch.distributed.init_process_group() first")
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (split.pipeline, split.data, split.tensor)
    with _for_real() if traced else contextlib.nullcontext():
        mesh = init_device_mesh(device, sizes, mesh_dim_names=("pipeline", "data", "tensor"))
    stage = preview = None
    if split.pipeline > 1:
        from fairlead.runtime.parallelism.stages import FakeModel, cut

        index = mesh["pipeline"].get_local_rank()
        if traced:
            preview = FakeModel(
                model=copy.deepcopy(model), path=blocks.path, count=split.pipeline, index=index, precision=half
            )
        stage = cut(model, blocks, index, split.pipeline, plan, precision=half)
    own = [block for block in blocks.modules if next(block.parameters(), None) is not None]
    if split.tensor > 1:
        from fairlead.runtime.parallelism.tensor_parallel import divide

        divide(model, own, mesh["tensor"], plan)
    is_sharded = split.data > 1 and split.shard != "none"
    _compute_in(None if is_sharded else half, own, model)
    _recompute(own, split.recompute)
    module = model
    if split.data > 1 and not is_sharded and not traced:  # DDP reads the memory of parameters
        from torch.nn.parallel import DistributedDataParallel

        module = DistributedDataParallel(model, process_group=mesh.get_group("data"))
    elif is_sharded:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # Gradients are summed in fp32, as the estimates assume.
        mixed = MixedPrecisionPolicy() if half is None else MixedPrecisionPolicy(half, torch.float32)
        for part in (*own, model):
            # Backward begins with the last block and the modules after it, so gathering them twice gains nothing.
            reshards = split.shard == "parameters" and part is not model and part is not own[-1]
            fully_shard(part, mesh=mesh["data"], reshard_after_forward=reshards, mp_policy=mixed)
    return AppliedSplit(
        module=module, split=split, device=device, precision=half, mesh=mesh, stage=stage, preview=preview
    )


def _for_real() -> contextlib.AbstractContextManager[object]:
    """Make tensors real temporarily, because the rank numbers in a mesh are read."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def _compute_in(half: "torch.dtype | None", blocks: "list[torch.nn.Module]", model: "torch.nn.Module") -> None:
    """Make the blocks and the rest of the model compute with parameters cast to half precision, as FSDP does."""
    if half is None:
        return
    seen = {id(item) for block in blocks for item in block.parameters()}
    for module in (*blocks, model):
        taken = seen if module is model else set[int]()
        places = [
            (at._parameters, name)
            for at in module.modules()
            for name, item in at._parameters.items()
            if item is not None and id(item) not in taken
        ]
        module.forward = _in_halves(module.forward, places, half)


def _in_halves(forward: Any, places: "list[tuple[Any, str]]", half: "torch.dtype") -> Any:
    from torch.utils._pytree import tree_map

    def cast(value: Any) -> Any:
        return value.to(half) if getattr(value, "is_floating_point", bool)() else value

    def call(*args: Any, **kwargs: Any) -> Any:
        whole = [(where, name, where[name]) for where, name in places]
        halves = {id(item): item.to(half) for _, _, item in whole}
        try:
            for where, name, item in whole:
                where[name] = halves[id(item)]
            return forward(*tree_map(cast, args), **tree_map(cast, kwargs))
        finally:
            for where, name, item in whole:
                where[name] = item

    return call


def _recompute(blocks: "list[torch.nn.Module]", what: str) -> None:
    """Make blocks recompute activations in backward, for ``full`` or ``selective``; do nothing for ``none``."""
    if what == "none":
        return
    from torch.utils.checkpoint import checkpoint

    options: dict[str, object] = {"use_reentrant": False}
    if what == "selective":
        options["context_fn"] = _keeping_every_second_product
    for block in blocks:
        # Set as an attribute of the module, so that neither its class nor the names in its state change.
        block.forward = functools.partial(checkpoint, block.forward, **options)


def _keeping_every_second_product() -> object:
    """Return contexts that keep attention's output and every second matrix product, as the estimates count."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    seen = {False: 0, True: 0}  # in forward, and in its recomputation

    def policy(context: "SelectiveCheckpointContext", operator: object, *_: object, **__: object) -> CheckpointPolicy:
        if "scaled_dot_product" in str(operator):
            return CheckpointPolicy.MUST_SAVE
        if operator not in products:
            return CheckpointPolicy.PREFER_RECOMPUTE
        seen[context.is_recompute] += 1
        is_kept = seen[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
