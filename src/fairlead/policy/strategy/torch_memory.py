"""Peak memory under plain PyTorch: DDP, FSDP2's ``fully_shard``, tensor parallel layers, pipeline stages.

Fp32 parameters, gradients and Adam moments; computed in bf16; fused attention; a loss in fp32 over all logits. FSDP2
gathers bf16 parameters block by block and reduces gradients in fp32; the root group (embedding, norm, output) and the
last block stay gathered after forward (torch, ``fully_shard``). Tensor parallel layers keep the residual stream whole,
and embedding and output are whole on each rank.

A step begins without gradients (``zero_grad`` frees them). Without FSDP each forward casts the parameters it multiplies
with and keeps them for its backward, but where it is computed again.

Each stream of CUDA has a pool of its own in the caching allocator, so what gathering and reducing take is not shared
with computing, and counts as ``pools``.
"""

from fairlead.errors import UnknownModel
from fairlead.policy.strategy.memory import Moment, StageMemory
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import FUSED_ACTIVATION, Transformer

# Bytes of a parameter (arXiv 1910.02054, sec. 3.1, with fp32 parameters that are the master copy).
PARAMETER, GRADIENT, MOMENTS, COMPUTED = 4, 4, 8, 2


def stages(model: Transformer, split: Split, *, compiled: bool = False) -> tuple[StageMemory, ...]:
    """Memory of a GPU of each stage.

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
    block = norms + (model.dense_parameters(0) - norms) / t
    tied_again = is_last and (not model.tied or not is_first)
    root = (model.embedding if is_first else 0) + (model.output if is_last else 0)
    root += model.vocabulary * model.hidden if tied_again else 0
    parameters = block * len(layers) + root
    shards = split.data if split.zero >= 2 else 1
    # FSDP divides by rows: what has one is whole on the first rank, and gathered as if each had a row.
    undivided = model.undivided if is_first else 0
    own = parameters / shards + undivided * (1 - 1 / shards)
    flying = _in_flight(split, stage)
    cached = len(layers) * layer_cache(model, split, compiled=compiled) + _between(model, split, is_last)
    cached = flying * (cached + (_embedding_cache(model, split) if is_first else 0))
    weights = model.vocabulary * model.hidden if is_last else 0
    weights += model.patch * model.hidden if is_first else 0
    computed, pools = _computed(split, flying, parameters, root, block, blocks=block * len(layers), weights=weights)
    computed += COMPUTED * undivided * (shards - 1)
    # With one micro-batch nothing has a gradient yet at the end of forward; a pipeline shards gradients after its last.
    gradients = GRADIENT * (parameters if split.pipeline > 1 else own) if split.micro_batches > 1 else 0.0
    # DDP's buckets hold gradients once more.
    buckets = GRADIENT * parameters if split.data > 1 and split.zero < 2 else 0.0
    # The foreach optimizer has a temporary of all parameters' size, when all activations are gone.
    step = 2 * GRADIENT * own - gradients - cached - computed
    moments = _moments(model, split, is_last, compiled, block, len(layers))
    if split.pipeline > 1 and is_first and split.zero < 2:
        # The embedding, cast until forward is over.
        cast = COMPUTED * (model.embedding + model.sequence * split.micro_batch * model.hidden)
        moments.append(Moment(temporaries=cast))
    worst = max((*moments, Moment(temporaries=step)), key=lambda each: each.total)
    return StageMemory(
        parameters=PARAMETER * own,
        gradients=gradients,
        optimizer=MOMENTS * own,
        activations=cached + _images(model, split),
        logits=worst.logits,
        temporaries=worst.temporaries,
        buffers=computed + buckets,
        pools=pools,
    )


def _in_flight(split: Split, stage: int) -> float:
    """Micro-batches whose activations a stage has at once: with fewer than stages, all (``run.forward_backward``)."""
    return split.micro_batches if split.micro_batches < split.pipeline else split.in_flight(stage)


def _between(model: Transformer, split: Split, is_last: bool) -> float:
    """Bytes of a micro-batch that a pipeline keeps of what a stage gives, and on the last of what it is given.

    ``torch.distributed.pipelining`` keeps outputs until their backward, and has room for what comes for all
    micro-batches; on stages between, that room is as large as what blocks keep of it.
    """
    if split.pipeline == 1:
        return 0.0
    tokens = model.sequence * split.micro_batch
    if not is_last:
        # What a block ends with a norm gives is kept by that.
        return 0.0 if model.masked else COMPUTED * tokens * model.hidden
    received = split.micro_batches * model.hidden / _in_flight(split, split.pipeline - 1)
    return COMPUTED * tokens * (model.vocabulary + received)


def _computed(
    split: Split, flying: float, parameters: float, root: float, block: float, *, blocks: float, weights: float
) -> tuple[float, float]:
    """Bytes of parameters in bf16 while computing, and of the pools of the streams that gather and reduce.

    Args:
        weights: Parameters outside the blocks that backward multiplies with: the output's, and those of patches.
    """
    if split.zero < 2:
        # Backward of an embedding needs no weights. What is computed again is cast again.
        kept = blocks if split.recompute is Recompute.NONE else 0.0
        return COMPUTED * flying * (kept + weights), 0.0
    # The root group and the last block stay gathered after forward; a pipeline gathers once for all micro-batches.
    at_once = root + block if split.zero == 3 and split.pipeline == 1 else parameters
    return COMPUTED * at_once, COMPUTED * (root + block) + GRADIENT * parameters / split.data


def layer_cache(model: Transformer, split: Split, *, compiled: bool = False) -> float:
    """Bytes that a block keeps of a micro-batch for backward, after arXiv 2205.05198, sec. 4 (eq. 2), by operator.

    ``selective`` keeps a block's input, what attention gave, and every second matrix product (torchtitan's selective
    activation checkpointing by operator); ``full`` its input.
    """
    tokens, t, h, width = model.sequence * split.micro_batch, split.tensor, model.hidden, model.width
    inner, kv = model.heads * model.head, model.key_value_width
    logarithms = 4 * tokens * model.heads / t
    if split.recompute is Recompute.FULL:
        return 2 * tokens * h
    if split.recompute is Recompute.SELECTIVE:
        own = h + (0 if compiled else h)
        return 2 * tokens * (own + (2 * inner + kv + width) / t) + logarithms
    # What both norms keep, their inputs and outputs among it; queries, keys, values, what attention gave; MLP: before
    # and after the activation, and with a gate the gate's other side and the product.
    mlp = width * (4 if model.gated else model.activation_kept)
    norms = 2 * model.norm_kept * h + 16
    return tokens * (norms + 2 * (2 * inner + 2 * kv + mlp) / t) + logarithms


def _mlp_backward(model: Transformer, tokens: int, t: int) -> float:
    """Bytes that backward of an MLP takes: gradients of what it was given and of its inner width, and of a weight."""
    if model.gated or model.activation_kept != FUSED_ACTIVATION:
        return COMPUTED * tokens * (model.hidden + 2 * model.width / t)
    # What came out of the activation goes before its gradient comes.
    return COMPUTED * (tokens + model.hidden) * model.width / t


def _stream_gradient(model: Transformer, tokens: int) -> float:
    """Bytes of the gradient that came to a block, which goes on past its MLP where no norm comes after that.

    `_mlp_backward` has it of an MLP with a gate or an activation that is written out.
    """
    is_past = not model.gated and model.activation_kept == FUSED_ACTIVATION and not model.masked
    return COMPUTED * tokens * model.hidden if is_past else 0.0


def _next_gathered(split: Split, block: float, layers: int) -> float:
    """Bytes of a block that is gathered while backward is in the one after it (torch, FSDP2's backward prefetch)."""
    return COMPUTED * block if split.zero == 3 and split.pipeline == 1 and layers > 1 else 0.0


def _output_gradient(model: Transformer) -> float:
    """Bytes of the gradients of what comes after the last block, while backward is in the blocks.

    They are in bf16 until the end of backward: FSDP reduces those of its root group then, and without it they are cast
    back in the reverse order of forward, which cast these parameters first (torch, ``sequence_nr`` of autograd).
    """
    return COMPUTED * (model.output + model.vocabulary * model.hidden)


def _embedding_cache(model: Transformer, split: Split) -> float:
    """Bytes that what comes before the first block keeps of a micro-batch: for its norm, or images in bf16."""
    tokens = model.sequence * split.micro_batch
    of_norm = tokens * (model.norm_kept * model.hidden + 8) if model.masked else 0
    return of_norm + COMPUTED * model.image * split.micro_batch


def _images(model: Transformer, split: Split) -> float:
    """Bytes of a step's images, in fp32, which are there on all stages; tokens are too small to count."""
    return 4 * model.image * split.micro_batch * split.micro_batches


def _moments(
    model: Transformer, split: Split, is_last: bool, compiled: bool, block: float, layers: int
) -> list[Moment]:
    tokens, t, h = model.sequence * split.micro_batch, split.tensor, model.hidden
    of_output = _output_gradient(model) if is_last else 0.0
    gathered = of_output + _next_gathered(split, block, layers)
    found = [Moment(temporaries=2 * tokens * h + _mlp_backward(model, tokens, t) + gathered)]
    if split.recompute is not Recompute.NONE:
        # The block that is computed again, on top of what the others keep.
        whole = Split(tensor=t, micro_batch=split.micro_batch)
        again = layer_cache(model, whole) - layer_cache(model, split, compiled=compiled)
        again += COMPUTED * block if split.zero < 2 else 0
        again += _mlp_backward(model, tokens, t) + _stream_gradient(model, tokens)
        found.append(Moment(temporaries=again + gathered))
        if split.micro_batches == 1 and split.zero < 2:
            # By the time that the first block is computed again, those after it have gradients; their inputs are gone.
            later = (layers - 1) * (GRADIENT * block - layer_cache(model, split, compiled=compiled))
            found.append(Moment(temporaries=again + of_output + later))
    if is_last:
        # The loss in fp32: log-softmax, its gradient and the gradient of the logits (torch, `_log_softmax_backward`).
        # Besides, what the last norm keeps, and the activation before a masked model's.
        norm = tokens * ((model.norm_kept + (COMPUTED if model.masked else 0)) * h + 8)
        logits = 12 * (tokens * model.vocabulary + split.micro_batch * model.classes)
        found.append(Moment(temporaries=norm, logits=logits))
    return found
