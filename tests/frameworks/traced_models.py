"""A program that trains one of Hugging Face's models, large enough for its memory to be compared with an estimate.

With ``config`` before the model's name it says its config instead.
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import fairlead

VOCABULARY, SEQUENCE, HIDDEN, WIDTH, CLASSES = 8192, 512, 256, 1024, 1000


def make(name: str) -> tuple[Any, torch.nn.Module]:
    """The config and the model."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": HIDDEN, "num_hidden_layers": 3, "num_attention_heads": 4}
    quiet: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config: Any
    if name == "llama":
        config = transformers.LlamaConfig(
            **sizes,
            num_key_value_heads=4,
            intermediate_size=WIDTH,
            vocab_size=VOCABULARY,
            max_position_embeddings=SEQUENCE,
        )
        return config, transformers.LlamaForCausalLM(config)
    if name == "gpt2":
        config = transformers.GPT2Config(
            n_embd=HIDDEN, n_layer=3, n_head=4, vocab_size=VOCABULARY, n_positions=SEQUENCE,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
        )  # fmt: skip
        return config, transformers.GPT2LMHeadModel(config)
    if name == "bert":
        config = transformers.BertConfig(**sizes, **quiet, intermediate_size=WIDTH, vocab_size=VOCABULARY)
        return config, transformers.BertForMaskedLM(config)
    config = transformers.ViTConfig(
        **sizes, **quiet, intermediate_size=WIDTH, image_size=224, patch_size=16, num_labels=CLASSES
    )
    return config, transformers.ViTForImageClassification(config)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32, of tokens or of images."""
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def main(name: str) -> None:
    """Train for as many steps as are asked for."""
    with fairlead.run() as run:
        if run.world_size > 1:
            dist.init_process_group()
        model = run.parallelize(make(name)[1], device="cpu")
        # As on a GPU; it does not take tensor parallel parameters beside plain ones.
        optimizer = torch.optim.AdamW(model.parameters(), foreach=run.parallel.tensor == 1)
        run.resume(model=model, optimizer=optimizer)
        for _ in range(100):
            count = run.parallel.samples
            if name == "vit":
                samples, targets = torch.randn(count, 3, 224, 224), torch.randint(CLASSES, (count,))
            else:
                tokens = torch.randint(VOCABULARY, (count, SEQUENCE + 1))
                samples, targets = tokens[:, :-1], tokens[:, 1:]
            run.forward_backward(model, samples, targets, loss=loss_of)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    if sys.argv[1] == "config":
        with torch.device("meta"):
            print(json.dumps(make(sys.argv[2])[0].to_dict()))
    else:
        main(sys.argv[1])
