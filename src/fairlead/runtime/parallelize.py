"""Applies the split of a run to a model with PyTorch's own means: DDP, FSDP2, tensor parallel layers, recomputation.

Blocks are found by their shape: the longest `ModuleList` or `Sequential` whose members are of one class. Tensor
parallel layers are the linear ones of Llama's and GPT-2's names, in any module that has them: `q_proj`, `k_proj`,
`v_proj`, `gate_proj`, `up_proj` and `c_fc` by columns, `o_proj`, `down_proj` and an MLP's `c_proj` by rows
(Megatron-LM, arXiv 1909.08053, sec. 3). The attention around them has to take its number of heads from the width of
what they give.
"""

from typing import TYPE_CHECKING

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallel import Split

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.utils.checkpoint import SelectiveCheckpointContext

BY_COLUMNS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "c_fc"})
BY_ROWS = frozenset({"o_proj", "down_proj", "c_proj"})


def parallelize(model: "torch.nn.Module", split: Split, device: str) -> "torch.nn.Module":
    """Apply a split; returns the module to train, which is ``model`` itself but for DDP.

    Call it on every rank, with the process group there and before the optimizer is made. Ranks of one replica's tensor
    parts are neighbours, and need the same samples.

    Args:
        device: Where the ranks compute, such as ``cuda`` or ``cpu``.

    Raises:
        Misuse: The split has pipelines, or the model no layers that it can divide.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if split.pipeline > 1:
        raise Misuse(
            "run.parallelize() builds no pipelines; give `parallel.pipeline: 1`, or split the model into stages with "
            "torch.distributed.pipelining by run.parallel"
        )
    blocks = _blocks(model)
    if split.tensor > 1 and split.data > 1 and split.shard == "none":
        raise Misuse(
            "run.parallelize() copies no tensor parallel layers; give `parallel.shard: gradients`, it takes less memory"
        )
    if split.tensor * split.data > 1 and not dist.is_initialized():
        raise Misuse("run.parallelize() needs the process group; call torch.distributed.init_process_group() first")
    if split.tensor * split.data == 1:
        _recompute(blocks, split.recompute)
        return model
    mesh = init_device_mesh(device, (split.data, split.tensor), mesh_dim_names=("data", "tensor"))
    if split.tensor > 1:
        _divide(model, mesh["tensor"])
    _recompute(blocks, split.recompute)
    if split.data == 1:
        return model
    if split.shard == "none":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, process_group=mesh.get_group("data"))
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # GPUs compute in bf16 and add gradients up in fp32, as the estimates have it.
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    precision = half if device == "cuda" else MixedPrecisionPolicy()
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh["data"], reshard_after_forward=split.shard == "parameters", mp_policy=precision)
    return model


def _blocks(model: "torch.nn.Module") -> "list[torch.nn.Module]":
    """The layers of a model that are alike, in their order; none when it has no such list."""
    from torch.nn import ModuleList, Sequential

    found: list[torch.nn.Module] = []
    for module in model.modules():
        if isinstance(module, (ModuleList, Sequential)):
            members = list(module)
            alike = len({type(member) for member in members}) == 1 and any(True for _ in members[0].children())
            if alike and len(members) > len(found):
                found = members
    return found


def _divide(model: "torch.nn.Module", mesh: "DeviceMesh") -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.distributed.tensor.parallel.style import ParallelStyle
    from torch.nn import Linear

    divided = 0
    for module in list(model.modules()):
        layers = {name: child for name, child in module.named_children() if isinstance(child, Linear)}
        columns = layers.keys() & BY_COLUMNS
        rows = layers.keys() & BY_ROWS if columns else set()
        if not columns or not rows:
            continue
        for name in columns:
            width = layers[name].out_features
            if width % mesh.size():
                raise Misuse(
                    f"{name} has {width} columns, which {mesh.size()} ranks cannot share; change parallel.tensor"
                )
        plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
        plan.update((name, RowwiseParallel()) for name in rows)
        parallelize_module(module, mesh, plan)
        divided += 1
    if not divided:
        raise Misuse(
            f"run.parallelize() found no layers to divide; it knows {', '.join(sorted(BY_COLUMNS | BY_ROWS))}. "
            "Give `parallel.tensor: 1`"
        )


def _recompute(blocks: "list[torch.nn.Module]", what: str) -> None:
    """Have blocks compute again in backward what ``full`` or ``selective`` says; nothing for ``none``."""
    if what == "none":
        return
    import functools

    from torch.utils.checkpoint import checkpoint

    options: dict[str, object] = {"use_reentrant": False}
    if what == "selective":
        options["context_fn"] = _keeping_every_second_product
    for block in blocks:
        # An attribute of the module, so that neither its class nor the names in its state change.
        block.forward = functools.partial(checkpoint, block.forward, **options)


def _keeping_every_second_product() -> object:
    """Contexts of a block that keep what attention gave and every second matrix product, as the estimates count."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    seen = {False: 0, True: 0}  # in forward, and when it is computed again

    def policy(context: "SelectiveCheckpointContext", operator: object, *_: object, **__: object) -> CheckpointPolicy:
        if "scaled_dot_product" in str(operator):
            return CheckpointPolicy.MUST_SAVE
        if operator not in products:
            return CheckpointPolicy.PREFER_RECOMPUTE
        seen[context.is_recompute] += 1
        is_kept = seen[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
