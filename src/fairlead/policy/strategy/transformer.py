"""Describes a transformer's shape, and the parameters that follow from it.

Covers dense decoders and encoders, mixtures of experts, and multi-head latent attention. ``hugging_face`` reads a
published ``config.json``; missing values are not guessed.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.errors import UnknownModel
from fairlead.frozen import dataclass

# The inner width of an MLP in hidden sizes, if a description omits it (arXiv 1706.03762, sec. 3.3).
WIDTH_FACTOR = 4
# Bytes that a norm keeps per element: input and output in bf16, or, if it consists of several operators as in Hugging
# Face's RMSNorm, the input in fp32, the normalized one in bf16 and the output.
FUSED_NORM, WRITTEN_OUT_NORM = 4, 8
# How many times the inner width of an MLP without a gate is kept: before and after the activation, or, if that is
# written out as Hugging Face's `gelu_new`, three of its terms too.
FUSED_ACTIVATION, WRITTEN_OUT_ACTIVATION = 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, sec. 2.1).

    Attributes:
        query_rank: Width of the compressed queries; 0 if queries are not compressed.
        key_value_rank: Width of the compressed keys and values.
        head: Width of a head's part without position.
        rotary: Width of a head's part with position; keys share one.
        value: Width of a head's values.
    """

    query_rank: int
    key_value_rank: int
    head: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a layer.

    Attributes:
        count: Experts of a layer, without shared ones.
        per_token: Experts per token.
        width: Inner width of one expert.
        shared_width: Inner width of the shared part that all tokens use; 0 without one.
        dense_layers: Number of first layers without experts.
    """

    count: int
    per_token: int
    width: int
    shared_width: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A transformer, as far as it affects the memory and time of a training step.

    Attributes:
        layers: Blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        key_value_heads: Heads of keys and values; fewer than ``heads`` with grouped queries.
        head: Width of a head.
        width: Inner width of a dense layer's MLP.
        vocabulary: Number of tokens, before any padding.
        sequence: Tokens per sample.
        gated: Whether the MLP has a gate (SwiGLU, GeGLU).
        biases: Whether linear layers and norms have biases.
        tied: Whether output and input embedding are one.
        positions: Learned positions; 0 if they are rotary.
        segments: Embedded token types (BERT, arXiv 1810.04805, sec. 3).
        patch: Values of an image patch, which is embedded by a product; 0 for text.
        classes: Classes of an image, predicted from the class token; 0 for text.
        masked: Whether it is a masked language model like BERT: norms after attention and MLP and after the embedding,
            and a dense layer with a norm before the output (arXiv 1810.04805, sec. 3.1).
        norm_kept: Bytes that a norm keeps for backward per element of its input: input and output in bf16.
        activation_kept: How many times an MLP without a gate keeps its inner width for backward.
        latent: Latent attention; None for the usual one.
        experts: None for a dense model.
    """

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head: int
    width: int
    vocabulary: int
    sequence: int
    gated: bool = True
    biases: bool = False
    tied: bool = False
    positions: int = 0
    segments: int = 0
    patch: int = 0
    classes: int = 0
    masked: bool = False
    norm_kept: int = FUSED_NORM
    activation_kept: int = FUSED_ACTIVATION
    latent: LatentAttention | None = None
    experts: Experts | None = None

    @property
    def key_value_width(self) -> int:
        """Return the width of all keys of a token, which equals that of all values."""
        return self.key_value_heads * self.head

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, has experts."""
        return self.experts is not None and layer >= self.experts.dense_layers

    @property
    def norm(self) -> int:
        """Return the parameters of one norm."""
        return self.hidden * (2 if self.biases else 1)

    @property
    def attention(self) -> int:
        """Return the parameters of a layer's attention."""
        h, n = self.hidden, self.heads
        if self.latent is not None:
            of = self.latent
            into_queries = n * (of.head + of.rotary)
            queries = h * of.query_rank + of.query_rank + of.query_rank * into_queries
            if not of.query_rank:
                queries = h * into_queries
            keys = h * (of.key_value_rank + of.rotary) + of.key_value_rank
            values = of.key_value_rank * n * (of.head + of.value)
            return queries + keys + values + n * of.value * h
        inner = n * self.head
        biases = inner + 2 * self.key_value_width + h if self.biases else 0
        return h * (inner + 2 * self.key_value_width) + inner * h + biases

    def mlp(self, width: int) -> int:
        """Return the parameters of an MLP of that inner width."""
        biases = width * (2 if self.gated else 1) + self.hidden if self.biases else 0
        return self.hidden * width * (3 if self.gated else 2) + biases

    def dense_parameters(self, layer: int) -> int:
        """Return the parameters of a layer that expert parallelism does not divide: all but the experts themselves."""
        shared = 2 * self.norm + self.attention
        if self.experts is None or not self.has_experts(layer):
            return shared + self.mlp(self.width)
        of = self.experts
        return shared + self.hidden * of.count + (self.mlp(of.shared_width) if of.shared_width else 0)

    def expert_parameters(self, layer: int) -> int:
        """Return the parameters of all experts of a layer."""
        if self.experts is None or not self.has_experts(layer):
            return 0
        return self.experts.count * self.mlp(self.experts.width)

    @property
    def embedding(self) -> int:
        """Return the parameters before the first block: embeddings, including patches, and a norm after them."""
        # Patches also have a bias and the class token.
        of_patches = (self.patch + 2) * self.hidden if self.patch else 0
        embedded = (self.vocabulary + self.positions + self.segments) * self.hidden
        return embedded + of_patches + (self.norm if self.masked else 0)

    @property
    def output(self) -> int:
        """Return the parameters after the last block, except the weights of tokens, which may be the embedding."""
        of_masked = self.hidden * (self.hidden + 1) + self.vocabulary if self.masked else 0
        return self.norm + of_masked + (self.hidden + 1) * self.classes

    @property
    def undivided(self) -> int:
        """Return the parameters with one row: positions of patches and the class token, in Hugging Face's ViT."""
        return (self.positions + 1) * self.hidden if self.patch else 0

    @property
    def image(self) -> int:
        """Return the number of values of an image; 0 for text."""
        return self.patch * (self.positions - 1) if self.patch else 0

    @property
    def parameters(self) -> int:
        """Return the number of all parameters."""
        blocks = sum(self.dense_parameters(layer) + self.expert_parameters(layer) for layer in range(self.layers))
        return blocks + self.embedding + self.output + (0 if self.tied else self.vocabulary * self.hidden)


def hugging_face(config: Mapping[str, Any], sequence: int | None = None) -> Transformer:
    """Return the transformer of a ``config.json``; ``sequence`` in tokens, its maximum if None.

    Raises:
        UnknownModel: It lacks a number, or describes no supported transformer.
    """
    text = config.get("text_config", config)
    hidden = _number(text, "hidden_size", "n_embd", "d_model", "dim")
    heads = _number(text, "num_attention_heads", "n_head", "num_heads")
    layers = _number(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    kind = str(text.get("model_type", ""))
    longest = _number(text, "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", default=0)
    patches = _patches(text)
    masked = kind in {"bert", "roberta"}
    old = kind in {"gpt2", "bert", "roberta", "vit", "gpt_neox", "opt", "distilbert", "electra"}
    vocabulary = 0 if patches else _number(text, "vocab_size")
    width = text.get("intermediate_size") or text.get("n_inner") or text.get("ffn_dim") or WIDTH_FACTOR * hidden
    learned = kind in {"gpt2", "bert", "roberta", "opt", "distilbert", "electra"}
    return Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        key_value_heads=int(text.get("num_key_value_heads") or heads),
        head=int(text.get("head_dim") or hidden // heads),
        width=int(width),
        vocabulary=vocabulary,
        sequence=_sequence(sequence, patches or longest),
        gated=not old,
        biases=old,
        tied=bool(text.get("tie_word_embeddings", kind in {"gpt2", "bert", "roberta"})),
        positions=patches or (longest if learned else 0),
        segments=_number(text, "type_vocab_size", default=2 if kind == "bert" else 1) if masked else 0,
        patch=int(text.get("num_channels", 3)) * int(text["patch_size"]) ** 2 if patches else 0,
        classes=len(text.get("id2label") or "01") if patches else 0,
        masked=masked,
        norm_kept=WRITTEN_OUT_NORM if "rms_norm_eps" in text else FUSED_NORM,
        activation_kept=WRITTEN_OUT_ACTIVATION if _activation(text, kind) == "gelu_new" else FUSED_ACTIVATION,
        latent=_latent(text),
        experts=_experts(text),
    )


def _activation(config: Mapping[str, Any], kind: str) -> str:
    """Return the name of its activation; GPT-2's configs seldom have it."""
    named = config.get("activation_function") or config.get("hidden_act")
    return str(named or ("gelu_new" if kind == "gpt2" else ""))


def _sequence(requested: int | None, longest: int) -> int:
    if requested is None and not longest:
        raise UnknownModel("the model's config says no longest sequence; give `sequence` in tokens")
    return requested or longest


def _patches(config: Mapping[str, Any]) -> int:
    """Return the tokens of an image (arXiv 2010.11929, sec. 3.1), including the class token; 0 for text."""
    if "image_size" not in config or "patch_size" not in config:
        return 0
    return (int(config["image_size"]) // int(config["patch_size"])) ** 2 + 1


def _latent(config: Mapping[str, Any]) -> LatentAttention | None:
    if not config.get("kv_lora_rank"):
        return None
    return LatentAttention(
        query_rank=int(config.get("q_lora_rank") or 0),
        key_value_rank=_number(config, "kv_lora_rank"),
        head=_number(config, "qk_nope_head_dim"),
        rotary=_number(config, "qk_rope_head_dim"),
        value=_number(config, "v_head_dim"),
    )


def _experts(config: Mapping[str, Any]) -> Experts | None:
    count = _number(config, "n_routed_experts", "num_local_experts", "num_experts", default=0)
    if count < 2:
        return None
    width = _number(config, "moe_intermediate_size", "intermediate_size")
    shared = int(config.get("shared_expert_intermediate_size") or width * int(config.get("n_shared_experts") or 0))
    return Experts(
        count=count,
        per_token=_number(config, "num_experts_per_tok", "num_experts_per_token", default=1),
        width=width,
        shared_width=shared,
        dense_layers=int(config.get("first_k_dense_replace") or 0),
    )


def _number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise UnknownModel(f"the model's config has no {' or '.join(f'`{name}`' for name in names)}; give one")
    return default
