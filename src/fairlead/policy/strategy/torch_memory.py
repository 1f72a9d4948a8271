"""Peak memory under plain PyTorch: DDP, FSDP2's ``fully_shard``, tensor parallel layers, pipeline stages.

Fp32 parameters, gradients and Adam moments; computed in bf16; fused attention; a loss in fp32 over all logits. FSDP2
gathers bf16 parameters block by block and reduces gradients in fp32; the root group (embedding, norm, output) and the
last block stay gathered after forward (torch, ``fully_shard``). Tensor parallel layers keep the residual stream whole,
and embedding and output are whole on each rank.

Each stream of CUDA has a pool of its own in the caching allocator, so what gathering and reducing take is not shared
with computing, and counts as ``buffers``.
"""

from fairlead.errors import UnknownModel
from fairlead.policy.strategy.memory import Moment, StageMemory
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import Transformer

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
    root = (model.embedding if is_first else 0) + (model.norm if is_last else 0)
    root += model.vocabulary * model.hidden if tied_again else 0
    parameters = block * len(layers) + root
    shards = split.data if split.zero >= 2 else 1
    resident, gathering, reducing = _gathered(split, parameters, root, block)
    kept = split.in_flight(stage) * len(layers) * layer_cache(model, split, compiled=compiled)
    is_repeated = split.micro_batches > 1
    moments = list(_moments(model, split, is_last, compiled))
    # With one micro-batch no shard has a gradient yet at the end of forward.
    gradients = GRADIENT * parameters / shards if is_repeated or split.zero == 0 else 0.0
    # The foreach optimizer has a temporary of all parameters' size, when all activations are gone.
    step = 2 * GRADIENT * parameters / shards - gradients - kept - resident
    worst = max((*moments, Moment(temporaries=step)), key=lambda each: each.total)
    return StageMemory(
        parameters=PARAMETER * parameters / shards,
        gradients=gradients,
        optimizer=MOMENTS * parameters / shards,
        activations=kept,
        logits=worst.logits,
        temporaries=worst.temporaries,
        buffers=resident + gathering + reducing,
    )


def _gathered(split: Split, parameters: float, root: float, block: float) -> tuple[float, float, float]:
    """Bytes of parameters in bf16 while computing, of the stream that gathers them, and of the one that reduces."""
    if split.zero < 2:
        # Autocast keeps the cast weights until backward is over; DDP's buckets hold gradients once more.
        return COMPUTED * parameters, 0.0, GRADIENT * parameters if split.data > 1 else 0.0
    at_once = root + block if split.zero == 3 and split.pipeline == 1 else parameters
    return COMPUTED * at_once, COMPUTED * (root + block), GRADIENT * parameters / split.data


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
    # Both norms' inputs and outputs; queries, keys, values, what attention gave; MLP: before and after the activation,
    # and with a gate the gate's other side and the product.
    mlp = width * (4 if model.gated else 2)
    return 2 * tokens * (4 * h + (2 * inner + 2 * kv + mlp) / t) + logarithms + 8 * tokens


def _moments(model: Transformer, split: Split, is_last: bool, compiled: bool) -> list[Moment]:
    tokens, t, h = model.sequence * split.micro_batch, split.tensor, model.hidden
    found = [Moment(temporaries=2 * tokens * (2 * h + 2 * model.width / t))]
    if split.recompute is not Recompute.NONE:
        # The block that is computed again, on top of what the others keep.
        whole = Split(tensor=t, micro_batch=split.micro_batch)
        again = layer_cache(model, whole) - layer_cache(model, split, compiled=compiled)
        found.append(Moment(temporaries=again + 2 * tokens * (h + 2 * model.width / t)))
    if is_last and model.vocabulary:
        # The loss in fp32: log-softmax, its gradient and the gradient of the logits (torch, `_log_softmax_backward`).
        found.append(Moment(temporaries=8 * tokens * h, logits=12 * tokens * model.vocabulary))
    return found
