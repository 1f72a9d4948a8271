"""Trains a small language model with Hugging Face's Trainer. Also runs standalone: python train.py"""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import fairlead
from fairlead.huggingface import FairleadCallback

# Your data here. This is a text that the model learns to continue, letter by letter.
TEXT = "the quick brown fox jumps over the lazy dog and the five boxing wizards jump quickly. " * 40
WINDOW = 32


class Letters(torch.utils.data.Dataset):
    """Pieces of the text, each letter a number."""

    def __init__(self):
        self.letters = torch.tensor([ord(letter) for letter in TEXT])

    def __len__(self):
        return len(self.letters) - WINDOW

    def __getitem__(self, start):
        piece = self.letters[start : start + WINDOW]
        return {"input_ids": piece, "labels": piece}


def main():
    torch.manual_seed(7)
    # Your model here.
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=int(os.environ.get("STEPS", "200")),
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=5,
        save_strategy="no",  # Fairlead saves, as often as train.yaml says
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    with fairlead.run() as run:
        callback = FairleadCallback(run)
        trainer = Trainer(model, arguments, train_dataset=Letters(), callbacks=[callback])
        # The newest complete checkpoint after a restart, None the first time.
        with callback.resumed(trainer) as checkpoint:
            result = trainer.train(resume_from_checkpoint=checkpoint)
        if run.rank == 0:
            print(f"trained {result.global_step} steps on {run.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
