"""Divides the layers of blocks among ranks: by columns, then by rows (Megatron-LM, arXiv 1909.08053, sec. 3).

Attention has to derive its number of heads from the width of its layers' outputs. A layer that computes queries, keys
and values in one stays whole on each rank, which computes with the columns of its own heads; the layer's gradients are
summed.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from fairlead.runtime.errors import Misuse
from fairlead.runtime.parallelism.plan import ParallelPlan

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

PARTS_OF_FUSED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Layers of a module divided by columns, and those divided by rows that follow them; paths within the module."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    fused: tuple[str, ...] = ()
    divided: tuple[str, ...] = ()


KNOWN = (
    _Pair(columns=("q_proj", "k_proj", "v_proj"), rows=("o_proj",)),  # Llama and similar models, ViT
    _Pair(columns=("gate_proj", "up_proj"), rows=("down_proj",)),  # Llama
    _Pair(columns=("fc1",), rows=("fc2",)),  # ViT
    _Pair(columns=("c_attn",), rows=("c_proj",), fused=("c_attn",), divided=("split_size",)),  # GPT-2
    _Pair(columns=("c_fc",), rows=("c_proj",)),  # GPT-2
    _Pair(columns=("self.query", "self.key", "self.value"), rows=("output.dense",)),  # BERT
    _Pair(columns=("intermediate.dense",), rows=("output.dense",)),  # BERT
)


def divide(model: nn.Module, blocks: list[nn.Module], mesh: "DeviceMesh", plan: ParallelPlan | None) -> None:
    """Divide layers among the ranks of a mesh, by a plan or by known layer names.

    Raises:
        Misuse: There are no such layers, or this number of ranks cannot divide them.
    """
    if plan is not None and (plan.columns or plan.rows):
        pair = _Pair(columns=plan.columns, rows=plan.rows, fused=plan.fused, divided=plan.divided)
        for number, block in enumerate(blocks):
            missing = [name for name in (*pair.columns, *pair.rows) if _layer(block, name) is None]
            if missing:
                raise Misuse(f"the plan names the layer {missing[0]}, which block {number} does not have")
            _divide(block, pair, mesh)
        if not blocks:
            raise Misuse("run.parallelize() found no blocks for the plan's layers; give the plan `blocks`")
        return
    layers = [(module, pair) for module in model.modules() for pair in KNOWN if _has(module, pair)]
    if not layers:
        names = sorted({name for pair in KNOWN for name in (*pair.columns, *pair.rows)})
        raise Misuse(
            f"run.parallelize() found no layers to divide; it knows {', '.join(names)}. "
            "Give it a fairlead.ParallelPlan with the model's own names, or `parallel.tensor: 1`"
        )
    for module, pair in layers:
        _divide(module, pair, mesh)


def _layer(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _has(module: nn.Module, pair: _Pair) -> bool:
    return all(_is_linear(_layer(module, name)) for name in (*pair.columns, *pair.rows))


def _is_transposed(layer: nn.Module | None) -> bool:
    """Return whether the layer is one of GPT-2's, whose weight is inputs by outputs."""
    return type(layer).__name__ == "Conv1D" and isinstance(getattr(layer, "weight", None), torch.Tensor)


def _is_linear(layer: nn.Module | None) -> bool:
    return isinstance(layer, nn.Linear) or _is_transposed(layer)


def _divide(module: nn.Module, pair: _Pair, mesh: "DeviceMesh") -> None:
    ranks = mesh.size()
    styles: dict[str, ParallelStyle] = {}
    for name in pair.columns:
        layer: Any = _layer(module, name)
        width = layer.weight.shape[1] if _is_transposed(layer) else layer.out_features
        parts = PARTS_OF_FUSED if name in pair.fused else 1
        if width % (ranks * parts):
            raise Misuse(f"{name} has {width} columns, which {ranks} ranks cannot share; change parallel.tensor")
        if name in pair.fused:
            _compute_own_columns(layer, mesh)
        else:
            styles[name] = _TransposedColumns() if _is_transposed(layer) else ColwiseParallel()
    for name in pair.rows:
        styles[name] = _TransposedRows() if _is_transposed(_layer(module, name)) else RowwiseParallel()
    parallelize_module(module, mesh, styles)
    for name in pair.divided:
        *path, last = name.split(".")
        of = module.get_submodule(".".join(path))
        count = getattr(of, last, None)
        if not isinstance(count, int) or count % ranks:
            raise Misuse(f"{name} is {count}, which {ranks} ranks cannot share; change parallel.tensor")
        setattr(of, last, count // ranks)


class _TransposedColumns(ColwiseParallel):
    """Divides by columns a layer whose weight is inputs by outputs."""

    def _apply(self, module: nn.Module, device_mesh: "DeviceMesh") -> nn.Module:
        return _transposed(self, module, device_mesh, weight=Shard(1), bias=Shard(0))


class _TransposedRows(RowwiseParallel):
    """Divides by rows a layer whose weight is inputs by outputs."""

    def _apply(self, module: nn.Module, device_mesh: "DeviceMesh") -> nn.Module:
        self.desired_input_layouts = (Shard(-1),)
        return _transposed(self, module, device_mesh, weight=Shard(0), bias=Replicate())


def _transposed(style: Any, module: nn.Module, mesh: "DeviceMesh", **placements: Shard | Replicate) -> nn.Module:
    """Apply a style as to a layer of torch, with a separate partition."""
    return distribute_module(
        module,
        mesh,
        lambda _, layer, mesh: _distribute(layer, mesh, **placements),
        functools.partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts),
        functools.partial(style._prepare_output_fn, style.output_layouts, style.use_local_output),
    )


def _distribute(layer: nn.Module, mesh: "DeviceMesh", **placements: Shard | Replicate) -> None:
    for name, placement in placements.items():
        whole = getattr(layer, name, None)
        if whole is not None:
            part = distribute_tensor(whole, mesh, [placement])
            layer.register_parameter(name, nn.Parameter(part, requires_grad=whole.requires_grad))


class _GradientsAddedUp(torch.autograd.Function):
    """Identity whose backward sums gradients over the ranks (Megatron-LM's f, arXiv 1909.08053, fig. 3)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        added = gradient.contiguous()
        added = added.clone() if added is gradient else added
        dist.all_reduce(added, group=ctx.group)
        return added, None


def _compute_own_columns(layer: nn.Module, mesh: "DeviceMesh") -> None:
    """Make a layer of queries, keys and values return only those of this rank's heads."""
    group, rank, ranks = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    transposed = _is_transposed(layer)

    def own(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        whole = _GradientsAddedUp.apply(tensor, group)
        parts = whole.chunk(PARTS_OF_FUSED, dim)
        return torch.cat([part.chunk(ranks, dim)[rank] for part in parts], dim)

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        weight: Any = layer.weight
        bias: Any = layer.bias
        columns = own(weight, 1).t() if transposed else own(weight, 0)
        inputs = _GradientsAddedUp.apply(inputs, group)
        return nn.functional.linear(inputs, columns, None if bias is None else own(bias, 0))

    layer.forward = forward
