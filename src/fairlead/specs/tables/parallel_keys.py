"""The keys of a Training that say what its model is and how a step of it is split."""

from fairlead.specs import parallel
from fairlead.specs.tables.field_types import DURATION, TEXT, WHOLE, Key, Section, SectionMap, word

MODEL = Section(
    type=parallel.ModelShape,
    rules=parallel.MODEL_RULES,
    shorthand="config",
    keys=(
        Key(
            name="config",
            kind=TEXT,
            doc="A Hugging Face config.json, relative to the spec file; other keys override its values.",
            attributes=("config",),
            example="config.json",
            also=("config_file", "config_json", "path", "file", "hf_config"),
        ),
        Key(
            name="layers",
            kind=WHOLE,
            doc="Blocks of the transformer.",
            attributes=("layers",),
            example="32",
            also=("num_layers", "num_hidden_layers", "n_layer", "n_layers", "depth", "blocks"),
        ),
        Key(
            name="hidden",
            kind=WHOLE,
            doc="Width of the residual stream.",
            attributes=("hidden",),
            example="4096",
            also=("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
        ),
        Key(
            name="heads",
            kind=WHOLE,
            doc="Attention heads.",
            attributes=("heads",),
            example="32",
            also=("num_heads", "num_attention_heads", "n_head", "n_heads"),
        ),
        Key(
            name="kv_heads",
            kind=WHOLE,
            doc="Heads of keys and values; as many as `heads` when left out.",
            attributes=("kv_heads",),
            example="8",
            also=("num_key_value_heads", "key_value_heads", "n_kv_heads", "num_query_groups"),
        ),
        Key(
            name="width",
            kind=WHOLE,
            doc="Inner width of the MLP; four times `hidden` when left out.",
            attributes=("width",),
            example="14336",
            also=("intermediate_size", "ffn", "ffn_dim", "n_inner", "mlp", "ffn_hidden_size"),
        ),
        Key(
            name="vocabulary",
            kind=WHOLE,
            doc="Tokens of the vocabulary.",
            attributes=("vocabulary",),
            example="128256",
            also=("vocab", "vocab_size", "tokens"),
        ),
        Key(
            name="sequence",
            kind=WHOLE,
            doc="Tokens of a sample; the maximum of `config` when left out.",
            attributes=("sequence",),
            example="8192",
            also=("seq", "seq_len", "sequence_length", "context_length", "max_seq_len", "block_size"),
        ),
    ),
)

# The parts of one split, of a run or of a candidate.
_PARTS = (
    Key(
        name="data",
        kind=WHOLE,
        doc="Replicas, each with its own samples; the remaining ranks when left out.",
        attributes=("data",),
        example="8",
        also=("dp", "data_parallel", "ddp", "replicas", "fsdp"),
    ),
    Key(
        name="shard",
        kind=word(parallel.Shard),
        doc="State that replicas shard: none (DDP), gradients (ZeRO 2), or parameters too (ZeRO 3, FSDP).",
        attributes=("shard",),
        example="parameters",
        also=("zero", "zero_stage", "sharding", "sharding_strategy"),
    ),
    Key(
        name="tensor",
        kind=WHOLE,
        doc="Number of parts of each layer.",
        attributes=("tensor",),
        example="2",
        also=("tp", "tensor_parallel", "model_parallel", "mp"),
    ),
    Key(
        name="pipeline",
        kind=WHOLE,
        doc="Number of pipeline stages.",
        attributes=("pipeline",),
        example="2",
        also=("pp", "pipeline_parallel", "stages"),
    ),
    Key(
        name="micro_batch",
        kind=WHOLE,
        doc="Samples of a micro-batch on each replica.",
        attributes=("micro_batch",),
        example="2",
        also=("micro_batch_size", "mbs", "per_device_batch_size", "local_batch"),
    ),
    Key(
        name="recompute",
        kind=word(parallel.Recomputed),
        doc="Activations that backward computes again to save memory.",
        attributes=("recompute",),
        example="selective",
        also=("activation_checkpointing", "gradient_checkpointing", "checkpoint_activations", "remat"),
    ),
)

_CANDIDATE = Section(
    type=parallel.SplitCandidate,
    rules=parallel.CANDIDATE_RULES,
    keys=(
        *_PARTS,
        Key(
            name="estimate",
            kind=DURATION,
            doc="Estimated time of a step, which `status` shows beside the measured one.",
            attributes=("estimate_s",),
            example="0.5s",
            also=("estimated", "expected", "step_time"),
        ),
    ),
)

PARALLEL = Section(
    type=parallel.Parallel,
    rules=parallel.PARALLEL_RULES,
    shorthand="choose",
    keys=(
        Key(
            name="choose",
            kind=word(parallel.Choose),
            doc="`auto` chooses the keys left out by the estimates for `model`; without it they have their defaults.",
            attributes=("choose",),
            example="auto",
            also=("mode", "strategy", "search", "auto"),
        ),
        *_PARTS,
        Key(
            name="batch",
            kind=WHOLE,
            doc="Samples of a step over all ranks; one for each replica and micro-batch when left out.",
            attributes=("batch",),
            example="512",
            also=("global_batch", "batch_size", "global_batch_size", "train_batch_size"),
        ),
        Key(
            name="probe",
            kind=WHOLE,
            doc="With `choose: auto`, how many of the best splits run for a few steps first; the fastest is kept.",
            attributes=("probe",),
            example="3",
            also=("trial", "trials", "autotune", "tune", "measure", "benchmark"),
        ),
        Key(
            name="candidates",
            kind=SectionMap(item=_CANDIDATE, names=parallel.CANDIDATE_NAME, most=parallel.CANDIDATES_MOST),
            doc="Splits that run for a few steps first, by name; keys left out are those of `parallel`.",
            attributes=("candidates",),
            example="{whole: {shard: none}, sharded: {shard: gradients}}",
            also=("candidate", "splits", "strategies", "options"),
        ),
    ),
)
