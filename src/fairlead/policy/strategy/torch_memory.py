"""Estimates peak memory under plain PyTorch: DDP, FSDP2's ``fully_shard``, tensor parallel layers, pipeline stages.

Assumes fp32 parameters, gradients and Adam moments; computing in bf16; fused attention; a loss in fp32 over all logits.
FSDP2 gathers bf16 parameters block by block and reduces gradients in fp32; the root group (embedding, norm, output) and
the last block stay gathered after forward (torch, ``fully_shard``). Tensor parallel layers keep the residual stream
whole, and embedding and output are whole on each rank.

A step begins without gradients (``zero_grad`` frees them). Without FSDP each forward casts the parameters it multiplies
with and keeps them for its backward, except where it is recomputed.

Each CUDA stream has its own pool in the caching allocator, so memory for gathering and reducing is not shared with
computing, and counts as ``pools``.
"""

from fairlead.errors import UnknownModel
from fairlead.policy.strategy.memory import MemoryPeak, StageMemory
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import FUSED_ACTIVATION, Transformer

# Bytes per parameter (arXiv 1910.02054, sec. 3.1, with fp32 parameters that are the master copy).
PARAMETER_BYTES, GRADIENT_BYTES, MOMENTS_BYTES, COMPUTE_BYTES = 4, 4, 8, 2


def stages(model: Transformer, split: Split, *, compiled: bool = False) -> tuple[StageMemory, ...]:
    """Return the memory of a GPU of each stage.

    Args:
        compiled: Whether blocks go through ``torch.compile``.

    Raises:
        UnknownModel: Experts or context parallelism, for which there is no formula here.
    """
    if model.experts is not None or model.latent is not None:
        raise UnknownModel("plain PyTorch's memory with experts or latent attention is not known")
    if split.context > 1 or split.expert > 1 or split.virtual > 1:
        raise UnknownModel("plain PyTorch's memory with context, expert or virtual pipeline parallelism is not known")
    return tuple(_stage(model, split, stage, compiled) for stage in range(split.pipeline))


def _stage(model: Transformer, split: Split, stage: int, compiled: bool) -> StageMemory:
    layers = split.layers_of(stage, model.layers)
    is_first, is_last = stage == 0, stage == split.pipeline - 1
    norms, t = 2 * model.norm, split.tensor
    block_parameters = norms + (model.dense_parameters(0) - norms) / t
    has_tied_copy = is_last and (not model.tied or not is_first)
    root_parameters = (model.embedding if is_first else 0) + (model.output if is_last else 0)
    root_parameters += model.vocabulary * model.hidden if has_tied_copy else 0
    blocks = block_parameters * len(layers)
    parameters = blocks + root_parameters
    shards = split.data if split.zero >= 2 else 1
    # FSDP divides by rows: a tensor with one row is whole on the first rank, and gathered as if each rank had a row.
    undivided = model.undivided if is_first else 0
    own_parameters = parameters / shards + undivided * (1 - 1 / shards)
    in_flight = _in_flight(split, stage)
    cached = len(layers) * layer_cache(model, split, compiled=compiled) + _pipeline_buffers(model, split, is_last)
    cached = in_flight * (cached + (_embedding_cache(model, split) if is_first else 0))
    weights = model.vocabulary * model.hidden if is_last else 0
    weights += model.patch * model.hidden if is_first else 0
    cast_bytes, pools = _cast_and_pools(
        split, in_flight, parameters, root_parameters, block_parameters, blocks=blocks, weights=weights
    )
    cast_bytes += COMPUTE_BYTES * undivided * (shards - 1)
    # With one micro-batch there are no gradients yet at the end of forward; a pipeline shards gradients after its last
    # one.
    gradients = (
        GRADIENT_BYTES * (parameters if split.pipeline > 1 else own_parameters) if split.micro_batches > 1 else 0.0
    )
    # DDP's buckets hold gradients a second time.
    buckets = GRADIENT_BYTES * parameters if split.data > 1 and split.zero < 2 else 0.0
    # The foreach optimizer has a temporary of the size of all parameters, when all activations are freed.
    optimizer_temporary = 2 * GRADIENT_BYTES * own_parameters - gradients - cached - cast_bytes
    peaks = _peaks(model, split, is_last, compiled, block_parameters, len(layers))
    if split.pipeline > 1 and is_first and split.zero < 2:
        # The embedding stays cast until forward is over.
        embedding_cast = COMPUTE_BYTES * (model.embedding + model.sequence * split.micro_batch * model.hidden)
        peaks.append(MemoryPeak(temporaries=embedding_cast))
    worst = max((*peaks, MemoryPeak(temporaries=optimizer_temporary)), key=lambda peak: peak.total)
    return StageMemory(
        parameters=PARAMETER_BYTES * own_parameters,
        gradients=gradients,
        optimizer=MOMENTS_BYTES * own_parameters,
        activations=cached + _image_bytes(model, split),
        logits=worst.logits,
        temporaries=worst.temporaries,
        buffers=cast_bytes + buckets,
        pools=pools,
    )


def _in_flight(split: Split, stage: int) -> float:
    """Return the micro-batches with activations on a stage: all if fewer than stages (``run.forward_backward``)."""
    return split.micro_batches if split.micro_batches < split.pipeline else split.in_flight(stage)


def _pipeline_buffers(model: Transformer, split: Split, is_last: bool) -> float:
    """Return the bytes per micro-batch that a pipeline keeps of a stage's outputs, and on the last stage of its inputs.

    ``torch.distributed.pipelining`` keeps outputs until their backward, and allocates receive buffers for all
    micro-batches; on middle stages these buffers are as large as what blocks keep of the input.
    """
    if split.pipeline == 1:
        return 0.0
    tokens = model.sequence * split.micro_batch
    if not is_last:
        # The output of a block that ends with a norm is already kept by that.
        return 0.0 if model.masked else COMPUTE_BYTES * tokens * model.hidden
    received = split.micro_batches * model.hidden / _in_flight(split, split.pipeline - 1)
    return COMPUTE_BYTES * tokens * (model.vocabulary + received)


def _cast_and_pools(
    split: Split, in_flight: float, parameters: float, root: float, block: float, *, blocks: float, weights: float
) -> tuple[float, float]:
    """Return bytes of bf16 parameters while computing, and of the pools of the streams that gather and reduce.

    Args:
        weights: Parameters outside the blocks that backward multiplies with: the output's, and those of patches.
    """
    if split.zero < 2:
        # Backward of an embedding needs no weights. Recomputed blocks are cast again.
        kept_blocks = blocks if split.recompute is Recompute.NONE else 0.0
        return COMPUTE_BYTES * in_flight * (kept_blocks + weights), 0.0
    # The root group and the last block stay gathered after forward; a pipeline gathers once for all micro-batches.
    gathered = root + block if split.zero == 3 and split.pipeline == 1 else parameters
    return COMPUTE_BYTES * gathered, COMPUTE_BYTES * (root + block) + GRADIENT_BYTES * parameters / split.data


def layer_cache(model: Transformer, split: Split, *, compiled: bool = False) -> float:
    """Return the bytes that a block keeps of a micro-batch for backward, after arXiv 2205.05198, sec. 4 (eq. 2).

    ``selective`` keeps a block's input, the output of attention, and every second matrix product (torchtitan's
    selective activation checkpointing by operator); ``full`` only its input.
    """
    tokens, t, h, width = model.sequence * split.micro_batch, split.tensor, model.hidden, model.width
    inner, kv = model.heads * model.head, model.key_value_width
    logarithms = 4 * tokens * model.heads / t
    if split.recompute is Recompute.FULL:
        return 2 * tokens * h
    if split.recompute is Recompute.SELECTIVE:
        own = h + (0 if compiled else h)
        return 2 * tokens * (own + (2 * inner + kv + width) / t) + logarithms
    # Kept are inputs and outputs of both norms, queries, keys, values and the output of attention; of the MLP, values
    # before and after the activation, and with a gate also its other side and the product.
    mlp = width * (4 if model.gated else model.activation_kept)
    norms = 2 * model.norm_kept * h + 16
    return tokens * (norms + 2 * (2 * inner + 2 * kv + mlp) / t) + logarithms


def _mlp_backward(model: Transformer, tokens: int, t: int) -> float:
    """Return the bytes that backward of an MLP takes: gradients of its input, of its inner width, and of a weight."""
    if model.gated or model.activation_kept != FUSED_ACTIVATION:
        return COMPUTE_BYTES * tokens * (model.hidden + 2 * model.width / t)
    # The output of the activation is freed before its gradient is allocated.
    return COMPUTE_BYTES * (tokens + model.hidden) * model.width / t


def _stream_gradient(model: Transformer, tokens: int) -> float:
    """Return the bytes of a block's incoming gradient, which bypasses its MLP if no norm follows that.

    `_mlp_backward` includes it for an MLP with a gate or an activation that is written out.
    """
    bypasses = not model.gated and model.activation_kept == FUSED_ACTIVATION and not model.masked
    return COMPUTE_BYTES * tokens * model.hidden if bypasses else 0.0


def _next_gathered(split: Split, block: float, layers: int) -> float:
    """Return the bytes of a block gathered during backward of the next one (torch, FSDP2's backward prefetch)."""
    return COMPUTE_BYTES * block if split.zero == 3 and split.pipeline == 1 and layers > 1 else 0.0


def _output_gradient(model: Transformer) -> float:
    """Return the bytes of gradients of everything after the last block, while backward is in the blocks.

    They stay in bf16 until the end of backward: FSDP reduces those of its root group then, and without it they are cast
    back in the reverse order of forward, which cast these parameters first (torch, ``sequence_nr`` of autograd).
    """
    return COMPUTE_BYTES * (model.output + model.vocabulary * model.hidden)


def _embedding_cache(model: Transformer, split: Split) -> float:
    """Return the bytes kept of a micro-batch before the first block: for its norm, or images in bf16."""
    tokens = model.sequence * split.micro_batch
    of_norm = tokens * (model.norm_kept * model.hidden + 8) if model.masked else 0
    return of_norm + COMPUTE_BYTES * model.image * split.micro_batch


def _image_bytes(model: Transformer, split: Split) -> float:
    """Return the bytes of a step's images, in fp32, which exist on all stages; tokens are too small to count."""
    return 4 * model.image * split.micro_batch * split.micro_batches


def _peaks(
    model: Transformer, split: Split, is_last: bool, compiled: bool, block: float, layers: int
) -> list[MemoryPeak]:
    """Return the temporary memory at the moments of a step that may have most, on top of what stays."""
    tokens, t, h = model.sequence * split.micro_batch, split.tensor, model.hidden
    of_output = _output_gradient(model) if is_last else 0.0
    gathered = of_output + _next_gathered(split, block, layers)
    peaks = [MemoryPeak(temporaries=2 * tokens * h + _mlp_backward(model, tokens, t) + gathered)]
    if split.recompute is not Recompute.NONE:
        # The recomputed block, on top of what the others keep.
        uncached = Split(tensor=t, micro_batch=split.micro_batch)
        recomputed = layer_cache(model, uncached) - layer_cache(model, split, compiled=compiled)
        recomputed += COMPUTE_BYTES * block if split.zero < 2 else 0
        recomputed += _mlp_backward(model, tokens, t) + _stream_gradient(model, tokens)
        peaks.append(MemoryPeak(temporaries=recomputed + gathered))
        if split.micro_batches == 1 and split.zero < 2:
            # When the first block is recomputed, later ones have gradients, and their inputs are freed.
            later = (layers - 1) * (GRADIENT_BYTES * block - layer_cache(model, split, compiled=compiled))
            peaks.append(MemoryPeak(temporaries=recomputed + of_output + later))
    if is_last:
        # The loss in fp32: log-softmax, its gradient and the gradient of the logits (torch, `_log_softmax_backward`).
        # In addition, what the last norm keeps, and the activation before a masked model's.
        norm = tokens * ((model.norm_kept + (COMPUTE_BYTES if model.masked else 0)) * h + 8)
        logits = 12 * (tokens * model.vocabulary + split.micro_batch * model.classes)
        peaks.append(MemoryPeak(temporaries=norm, logits=logits))
    return peaks
