"""A program that trains small models of Hugging Face's under one split after the other, and says what each rank saw."""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import fairlead

BATCH, STEPS, VOCABULARY, SEQUENCE = 8, 3, 64, 8


def make(name: str) -> tuple[torch.nn.Module, Any]:
    """The model, and a function of the number of a step that gives its samples and targets."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    quiet: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model: Any
    if name == "llama":
        config: Any = transformers.LlamaConfig(
            **sizes, num_key_value_heads=4, intermediate_size=32, vocab_size=VOCABULARY
        )
        model = transformers.LlamaForCausalLM(config)
    elif name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=3, n_head=4, vocab_size=VOCABULARY, n_positions=32,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    elif name == "bert":
        config = transformers.BertConfig(**sizes, **quiet, intermediate_size=32, vocab_size=VOCABULARY)
        model = transformers.BertForMaskedLM(config)
    else:
        config = transformers.ViTConfig(
            **sizes, **quiet, intermediate_size=32, image_size=8, patch_size=4, num_labels=VOCABULARY
        )
        model = transformers.ViTForImageClassification(config)

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        if name == "vit":
            images = torch.randn(BATCH, 3, 8, 8, generator=generator)
            return images, torch.randint(VOCABULARY, (BATCH,), generator=generator)
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    return model, batch


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of tokens, or of images."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def main() -> None:
    """Train each model under each split."""
    splits = json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    for name in sys.argv[2].split(","):
        for split in splits:
            os.environ["FAIRLEAD_PARALLEL"] = json.dumps({**split, "batch": BATCH})
            with fairlead.run() as run:
                torch.manual_seed(1)
                network, batch = make(name)
                model = run.parallelize(network, device="cpu")
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
                losses = []
                for step in range(STEPS):
                    parts = (part.chunk(run.parallel.data) for part in batch(step))
                    inputs, targets = (part[run.parallel.replica_of(rank)] for part in parts)
                    losses.append(float(run.forward_backward(model, inputs, targets, loss=loss_of)))
                    run.clip_gradients(model, 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            print("SAW " + json.dumps({"model": name, "split": split, "rank": rank, "losses": losses}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
