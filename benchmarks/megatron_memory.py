"""Peak memory under Megatron-LM with Transformer Engine (TE).

Bf16 parameters and activations, fp32 gradients that GEMMs add to in place, Adam with an fp32 master copy, sharded over
data and context parallel ranks (distributed optimizer), fused attention and cross-entropy, sequence parallelism, no
dropout; experts by all-to-all, padded to capacity factor 1, with grouped GEMMs. Shapes, as in the sources: T tokens of
a micro-batch on a context rank, t tensor parallel, h hidden, f MLP width, V padded vocabulary; x = 2 T h / t bytes is
one hidden state.
"""

import math

from fairlead.errors import UnknownModel
from fairlead.policy.strategy.memory import MemoryPeak, StageMemory
from fairlead.policy.strategy.split import Recompute, Split
from fairlead.policy.strategy.transformer import Experts, LatentAttention, Transformer

MIB = 1024**2
# Bytes of a parameter: bf16 weights; fp32 gradients; fp32 master, momentum and variance (arXiv 1910.02054, sec. 3.1).
WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12
# Vocabularies are padded to a multiple of this for each tensor rank, and hold one token more for the end of a document
# (Megatron-LM, `--make-vocab-size-divisible-by`).
VOCABULARY_MULTIPLE = 128
# One GEMM workspace of TE on GPUs from sm_90 (`get_cublas_workspace_size_bytes`); grouped GEMMs have four more streams.
TE_WORKSPACE = 32 * MIB + 1024
GROUPED_WORKSPACES = 4 * 32 * MIB
# torch.matmul's workspace of one handle and stream; there are two, for forward and for autograd's thread.
TORCH_WORKSPACES = 2 * 8_519_680


def stages(model: Transformer, split: Split) -> tuple[StageMemory, ...]:
    """Memory of a GPU of each stage.

    Raises:
        UnknownModel: No formula here covers it.
    """
    if not model.gated or model.biases:
        raise UnknownModel("Megatron's memory is known for gated MLPs without biases only")
    return tuple(_Stage(model, split, stage).memory() for stage in range(split.pipeline))


class _Stage:
    def __init__(self, model: Transformer, split: Split, stage: int) -> None:
        self.model, self.split = model, split
        self.layers = split.layers_of(stage, model.layers)
        self.is_first, self.is_last = stage == 0, stage == split.pipeline - 1
        self.in_flight = split.in_flight(stage)
        self.tokens = model.sequence * split.micro_batch // split.context
        self.hidden_state = 2 * self.tokens * model.hidden / split.tensor
        padding = VOCABULARY_MULTIPLE * split.tensor
        self.vocabulary = math.ceil((model.vocabulary + 1) / padding) * padding

    def memory(self) -> StageMemory:
        parameters, optimizer = self._parameters()
        caches = [self._cache(layer) for layer in self.layers]
        kept = sum(caches)
        moment = max(self._moments(), key=lambda each: each.total)
        temporaries = moment.temporaries
        if self.split.recompute is Recompute.FULL:
            # Each layer keeps its input, and one at a time is computed again (arXiv 2205.05198, sec. 5).
            kept, temporaries = self.hidden_state * len(caches), temporaries + max(caches, default=0.0)
        return StageMemory(
            parameters=WEIGHT * parameters,
            gradients=GRADIENT * parameters,
            optimizer=optimizer,
            activations=self.in_flight * kept,
            logits=moment.logits,
            temporaries=temporaries,
            buffers=self._dummy_gradients() + self._workspaces() + self._held(),
        )

    def _parameters(self) -> tuple[float, float]:
        """Parameters of a GPU, and bytes of its optimizer states (ZeRO stage 1: arXiv 1910.02054, sec. 5.1)."""
        model, split = self.model, self.split
        # Norms are whole on each tensor rank.
        norms = (2 * len(self.layers) + self.is_last) * model.norm
        dense = sum(model.dense_parameters(layer) - 2 * model.norm for layer in self.layers)
        dense += self.vocabulary * model.hidden * (self.is_first + self.is_last)
        experts = sum(model.expert_parameters(layer) for layer in self.layers) / split.expert
        whole = norms + dense / split.tensor
        sharded = split.zero > 0
        ranks = split.data * split.context if sharded else 1
        expert_ranks = max(1, split.data // split.expert) if sharded else 1
        return whole + experts, OPTIMIZER * (whole / ranks + experts / expert_ranks)

    def _cache(self, layer: int) -> float:
        """Return what a layer keeps of a micro-batch, bytes.

        After arXiv 2205.05198, sec. 4.1 and 4.2 (eq. 4), with fused attention instead of its 5as/h (arXiv 2205.14135,
        alg. 2 keeps one logarithm of sums for each row), SwiGLU (arXiv 2002.05202) and no dropout.
        """
        model, t, tokens = self.model, self.split.tensor, self.tokens
        if model.latent is None:
            attention = self._grouped_attention()
        else:
            attention = self._latent_attention(model.latent)
        if model.experts is not None and model.has_experts(layer):
            return attention + self._experts(model.experts)
        return attention + 2 * tokens * (2 * model.hidden + 3 * model.width) / t

    def _grouped_attention(self) -> float:
        """The first norm's input and output, queries, keys, values, output; logarithms of sums; the norms' roots."""
        model, t, tokens = self.model, self.split.tensor, self.tokens
        inner = model.heads * model.head
        kept = 2 * tokens * (2 * model.hidden + inner + 2 * model.key_value_width + inner) / t
        # TE from 2.8 keeps what attention gave before the all-to-all of context parallelism, too.
        before_exchange = 2 * tokens * inner / t if self.split.context > 1 else 0
        return kept + before_exchange + 8 * tokens / t + 4 * tokens * model.heads / t

    def _latent_attention(self, of: LatentAttention) -> float:
        """Down- and up-projections with their norms, queries and keys with both parts, values, output."""
        model, t, tokens = self.model, self.split.tensor, self.tokens
        ranks = 2 * model.hidden + 2 * of.query_rank + 2 * of.key_value_rank + of.rotary
        heads = model.heads * (2 * (of.head + of.rotary) + 2 * of.value)
        before_exchange = 2 * tokens * model.heads * of.value / t if self.split.context > 1 else 0
        return 2 * tokens * (ranks / t + heads / t) + 4 * tokens * model.heads / t + before_exchange

    def _experts(self, of: Experts) -> float:
        """The norm, the shared expert, the routed tokens of the experts, and the router.

        The router keeps for each token and expert four fp32 (its softmax, gates, gates that stayed, softmax of the
        balancing loss) and two int32 of a row map, and for each choice 8 bytes.
        """
        model, tokens = self.model, self.tokens
        routed = 2 * self._capacity(of) * (model.hidden + 3 * of.width)
        dense = 2 * tokens * (2 * model.hidden + 3 * of.shared_width) / self.split.tensor
        return dense + routed + 24 * tokens * of.count + 8 * tokens * of.per_token

    def _capacity(self, of: Experts) -> int:
        """Tokens of a rank's experts, padded to capacity factor 1 (arXiv 2101.03961, sec. 2.2)."""
        each = self.tokens // self.split.tensor if self.split.tensor > 1 else self.tokens
        return math.ceil(each * of.per_token / of.count) * of.count

    def _moments(self) -> list[MemoryPeak]:
        """Moments on top of all activations in flight; the optimizer step is smaller than each of them."""
        model, t, tokens, x = self.model, self.split.tensor, self.tokens, self.hidden_state
        whole = 2 * tokens * model.hidden
        gathers = t > 1
        found = []
        if any(not model.has_experts(layer) for layer in self.layers):
            # Backward of SwiGLU: the gradients of gate and up, and the gradient that came in.
            found.append(MemoryPeak(temporaries=4 * tokens * model.width / t + x))
            # Backward of the first linear layer: its input gathered again, and the input's gradient before its scatter.
            found.append(
                MemoryPeak(temporaries=whole * (1 + gathers) + x * (1 + gathers) - 2 * tokens * model.width / t)
            )
        if self.is_last:
            # Backward of the output layer: logits, which their gradient overwrites; the final norm's output, the
            # gradient of the hidden states, and with tensor parallelism both of them scattered.
            logits = 2 * tokens * self.vocabulary / t
            found.append(MemoryPeak(temporaries=x * (1 + 2 * gathers) + whole, logits=logits))
        if model.experts is not None and any(model.has_experts(layer) for layer in self.layers):
            routed = 2 * self._capacity(model.experts) * model.hidden
            # Combining in forward: the permuted tokens and the all-to-all's output still have names while the experts'
            # output, its transpose and the result live; the residual; and the gradient of the last micro-batch.
            found.append(MemoryPeak(temporaries=4 * routed + 2 * x + (0 if self.is_last else x)))
            found.append(MemoryPeak(temporaries=2 * routed + x))
        return found

    def _dummy_gradients(self) -> float:
        """Placeholders of weight gradients, one for each distinct shape, kept for good (TE, `get_dummy_wgrad`)."""
        model, t = self.model, self.split.tensor
        h, shapes = model.hidden, set[tuple[int, int]]()
        for layer in self.layers:
            if model.latent is None:
                inner = model.heads * model.head
                shapes |= {((inner + 2 * model.key_value_width) // t, h), (h, inner // t)}
            else:
                of = model.latent
                shapes |= {(of.query_rank, h), (model.heads * (of.head + of.rotary) // t, of.query_rank)}
                shapes |= {(of.key_value_rank + of.rotary, h), (h, model.heads * of.value // t)}
                shapes.add((model.heads * (of.head + of.value) // t, of.key_value_rank))
            if model.experts is None or not model.has_experts(layer):
                shapes |= {(2 * model.width // t, h), (h, model.width // t)}
                continue
            experts = model.experts
            shapes |= {(2 * experts.width, h), (h, experts.width)}
            if experts.shared_width:
                shapes |= {(2 * experts.shared_width // t, h), (h, experts.shared_width // t)}
        if self.is_last:
            shapes.add((self.vocabulary // t, h))
        return 2.0 * sum(rows * columns for rows, columns in shapes)

    def _workspaces(self) -> float:
        routes = any(self.model.has_experts(layer) for layer in self.layers)
        own = TORCH_WORKSPACES if routes or self.is_last else 0
        return TE_WORKSPACE + (GROUPED_WORKSPACES if routes else 0) + own

    def _held(self) -> float:
        """Tensors that outlive their use.

        Sines and cosines in fp32; on later stages the tensor that came in and the gradient that was sent back last,
        which the schedule's variables still name (arXiv 2104.04473, sec. 2.2); the output layer's gathered input.
        """
        model = self.model
        rotary = 4 * model.sequence * (model.latent.rotary if model.latent is not None else model.head)
        passed = 0 if self.is_first else 2 * self.hidden_state
        gathered = 2 * self.tokens * model.hidden if self.is_last and self.split.tensor > 1 else 0
        return rotary + passed + gathered
