"""Tells how a text server with continuous batching will answer before it has served anything: a roofline of its GPUs.

A step of decoding reads all weights and what the sequences have read so far; one with prompts computes their tokens
(Williams et al., "Roofline", CACM 2009). Memory and arithmetic reach a part of the data sheet's numbers, and each step
costs the engine's own time. Beside three saturated runs of vLLM 0.19 (Llama 8B on two GPUs, Qwen3 32B on a pair) the
time for each token was 24 % less to 8 % more than measured, the latency 28 % less to 19 % more.
"""

from collections.abc import Sequence

import numpy as np

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.serving.text_engine import BLOCK, Engine, Request, StepTimes, simulate
from fairlead.policy.strategy.gpus import Gpu
from fairlead.policy.strategy.memory import GIB
from fairlead.policy.strategy.transformer import Transformer

# Bytes of a weight and of an entry of the cache, in bf16.
BYTES = 2
MEMORY_REACHED, COMPUTE_REACHED, ATTENTION_REACHED = 0.85, 0.8, 0.5
# Of each step, of each sequence in it, and of each of two collectives a layer: seconds.
STEP_S, SEQUENCE_S, COLLECTIVE_S = 0.003, 2e-5, 3e-5
# The part of memory that engines take, and what their programs and activations need of it.
MEMORY_TAKEN, PROGRAM_BYTES = 0.9, 1.5 * GIB
# How far off it may be, relative to what is measured.
ERROR = 0.3
# Of the most that it can do.
SHARES = (0.25, 0.5, 0.75, 0.9)
NUM_REQUESTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Waits of requests under a load.

    Attributes:
        requests_s: Requests that come each second.
        tokens_s: Tokens that come out each second, of all of them.
        first_s: Mean seconds until a request has its first token.
        further_s: Mean seconds for each further one.
    """

    requests_s: float
    tokens_s: float
    first_s: float
    further_s: float


def by_data_sheet(model: Transformer, gpu: Gpu, num_gpus: int) -> StepTimes:
    """Return the seconds of a step of the model, divided among GPUs by tensor parallelism."""
    bandwidth = num_gpus * MEMORY_REACHED * gpu.memory_gb_s * 1e9
    flops = num_gpus * COMPUTE_REACHED * gpu.peak_tflops * 1e12
    weights = model.parameters - (0 if model.tied else model.vocabulary * model.hidden)
    several = num_gpus > 1
    collectives = 2 * model.layers * COLLECTIVE_S if several else 0.0
    # What a ring moves of a token's hidden state, twice in each layer (Patarasuk and Yuan, JPDC 2009).
    moved = 2 * model.layers * model.hidden * BYTES * 2 * (num_gpus - 1) / num_gpus / (gpu.link_gb_s * 1e9)
    pairs = 4 * model.layers * model.heads * model.head / (num_gpus * ATTENTION_REACHED * gpu.peak_tflops * 1e12)
    context = _cache_bytes(model) / bandwidth
    return StepTimes(
        base=STEP_S + weights * BYTES / bandwidth + collectives,
        sequence=SEQUENCE_S + moved,
        context=context,
        prompt=2 * weights / flops + moved,
        prompt_base=STEP_S + collectives,
        mixed_context=context,
        attention=pairs,
    )


def blocks_of(model: Transformer, gpu: Gpu, num_gpus: int) -> int:
    """Return the blocks of 16 tokens that fit beside the model; 0 where the model does not fit."""
    left = num_gpus * (MEMORY_TAKEN * gpu.memory_bytes - PROGRAM_BYTES) - BYTES * model.parameters
    return max(0, int(left / (BLOCK * _cache_bytes(model))))


def answers(times: StepTimes, engine: Engine, prompt: int, output: int) -> list[Answers]:
    """Return how requests of such lengths are answered at shares of the most that come out, and at last that most.

    Raises:
        UnknownModel: Not even one of them fits into memory.
    """
    try:
        most = most_per_s([Request(arrived_s=0.0, prompt=prompt, output=output)] * NUM_REQUESTS, times, engine)
    except ValueError as error:
        raise UnknownModel(f"{prompt} tokens and {output} more do not fit into its memory: {error}") from error
    return [_answered(times, engine, prompt, output, share * most) for share in SHARES]


def most_per_s(crowd: Sequence[Request], times: StepTimes, engine: Engine) -> float:
    """Return how many requests are answered a second where all have come at once.

    Raises:
        ValueError: One of them needs more memory than there is.
    """
    ends = np.sort(simulate(crowd, times, engine).last_s)
    # Between a quarter and three quarters, as the server is neither filling nor emptying there.
    early, late = len(crowd) // 4, 3 * len(crowd) // 4
    return (late - early) / float(ends[late] - ends[early])


def _answered(times: StepTimes, engine: Engine, prompt: int, output: int, rate: float) -> Answers:
    # A load that is the same each time.
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1.0 / rate, NUM_REQUESTS))
    requests = [Request(arrived_s=float(at), prompt=prompt, output=output) for at in arrivals]
    served = simulate(requests, times, engine)
    return Answers(
        requests_s=rate,
        tokens_s=rate * output,
        first_s=float(np.mean(served.first_s - arrivals)),
        further_s=float(np.mean(served.last_s - served.first_s)) / max(1, output - 1),
    )


def _cache_bytes(model: Transformer) -> float:
    """Bytes that a token keeps in the cache: keys and values of each layer, or the latent of both."""
    if model.latent is not None:
        return BYTES * model.layers * (model.latent.key_value_rank + model.latent.rotary)
    return 2 * BYTES * model.layers * model.key_value_width
