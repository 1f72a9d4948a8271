"""Predicts the performance of a text server with continuous batching before it serves, by a roofline model.

A decoding step reads all weights, but of experts only those that its tokens use, and the context of its sequences; a
step with prompts computes their tokens (Williams et al., "Roofline", CACM 2009). Memory and arithmetic reach a part of
the data sheet's numbers, and each step adds the engine's own time. Compared with three saturated runs of vLLM 0.19
(Llama 8B on two GPUs, Qwen3 32B on a pair), the time per token was 24 % less to 8 % more than measured, the latency
28 % less to 19 % more.
"""

from collections.abc import Sequence

import numpy as np

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.serving.text_engine import BLOCK, EngineLimits, EngineRequest, StepTimes, simulate
from fairlead.policy.strategy.gpus import GpuModel
from fairlead.policy.strategy.memory import GIB
from fairlead.policy.strategy.transformer import Transformer

# Bytes of a weight and of a cache entry, in bf16.
BYTES = 2
MEMORY_REACHED, COMPUTE_REACHED, ATTENTION_REACHED = 0.85, 0.8, 0.5
# Overhead per step, per sequence in it, and per collective (two a layer): seconds.
STEP_S, SEQUENCE_S, COLLECTIVE_S = 0.003, 2e-5, 3e-5
# The part of memory that engines allocate, and the bytes that their programs and activations take of it.
MEMORY_TAKEN, PROGRAM_BYTES = 0.9, 1.5 * GIB
# The possible error relative to measurements.
ERROR = 0.3
# Loads as shares of the maximum.
SHARES = (0.25, 0.5, 0.75, 0.9)
NUM_REQUESTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Times of requests under a load.

    Attributes:
        requests_s: Requests arriving per second.
        tokens_s: Output tokens per second, over all requests.
        first_s: Mean seconds until the first token of a request.
        further_s: Mean seconds per further token.
    """

    requests_s: float
    tokens_s: float
    first_s: float
    further_s: float


def by_data_sheet(model: Transformer, gpu: GpuModel, num_gpus: int) -> StepTimes:
    """Return the step times of the model, divided among GPUs by tensor parallelism."""
    bandwidth = num_gpus * MEMORY_REACHED * gpu.memory_gb_s * 1e9
    flops = num_gpus * COMPUTE_REACHED * gpu.peak_tflops * 1e12
    weights = model.parameters - (0 if model.tied else model.vocabulary * model.hidden)
    experts = sum(model.expert_parameters(layer) for layer in range(model.layers))
    used = weights - experts * (1.0 - expert_share(model)) if experts else weights
    several = num_gpus > 1
    collectives = 2 * model.layers * COLLECTIVE_S if several else 0.0
    # The traffic of a ring all-reduce for a token's hidden state, twice per layer (Patarasuk and Yuan, JPDC 2009).
    moved = 2 * model.layers * model.hidden * BYTES * 2 * (num_gpus - 1) / num_gpus / (gpu.link_gb_s * 1e9)
    pairs = 4 * model.layers * model.heads * model.head / (num_gpus * ATTENTION_REACHED * gpu.peak_tflops * 1e12)
    context = _cache_bytes(model) / bandwidth
    return StepTimes(
        base=STEP_S + (weights - experts) * BYTES / bandwidth + collectives,
        sequence=SEQUENCE_S + moved,
        context=context,
        prompt=2 * used / flops + moved,
        prompt_base=STEP_S + collectives,
        mixed_context=context,
        attention=pairs,
        experts=experts * BYTES / bandwidth,
    )


def expert_share(model: Transformer) -> float:
    """Return the share of a layer's experts that a token uses; 0 for a dense model."""
    return 0.0 if model.experts is None else model.experts.per_token / model.experts.count


def blocks_of(model: Transformer, gpu: GpuModel, num_gpus: int) -> int:
    """Return the blocks of 16 tokens that fit beside the model; 0 if the model does not fit."""
    left = num_gpus * (MEMORY_TAKEN * gpu.memory_bytes - PROGRAM_BYTES) - BYTES * model.parameters
    return max(0, int(left / (BLOCK * _cache_bytes(model))))


def answers(times: StepTimes, engine: EngineLimits, prompt: int, output: int) -> list[Latencies]:
    """Return predictions for requests of such lengths at the loads of ``SHARES``.

    Raises:
        UnknownModel: Not even a single request fits into memory.
    """
    try:
        most = most_per_s([EngineRequest(arrived_s=0.0, prompt=prompt, output=output)] * NUM_REQUESTS, times, engine)
    except ValueError as error:
        raise UnknownModel(f"{prompt} tokens and {output} more do not fit into its memory: {error}") from error
    return [_answered(times, engine, prompt, output, share * most) for share in SHARES]


def most_per_s(crowd: Sequence[EngineRequest], times: StepTimes, engine: EngineLimits) -> float:
    """Return the requests answered per second if all have arrived at once.

    Raises:
        ValueError: One of them needs more memory than exists.
    """
    ends = np.sort(simulate(crowd, times, engine).last_s)
    # Between the first and third quartile, where the server is neither filling nor draining.
    early, late = len(crowd) // 4, 3 * len(crowd) // 4
    return (late - early) / float(ends[late] - ends[early])


def _answered(times: StepTimes, engine: EngineLimits, prompt: int, output: int, rate: float) -> Latencies:
    # A reproducible load.
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1.0 / rate, NUM_REQUESTS))
    requests = [EngineRequest(arrived_s=float(at), prompt=prompt, output=output) for at in arrivals]
    served = simulate(requests, times, engine)
    return Latencies(
        requests_s=rate,
        tokens_s=rate * output,
        first_s=float(np.mean(served.first_s - arrivals)),
        further_s=float(np.mean(served.last_s - served.first_s)) / max(1, output - 1),
    )


def _cache_bytes(model: Transformer) -> float:
    """Return the bytes of a token in the cache: keys and values of each layer, or the latent of both."""
    if model.latent is not None:
        return BYTES * model.layers * (model.latent.key_value_rank + model.latent.rotary)
    return 2 * BYTES * model.layers * model.key_value_width
