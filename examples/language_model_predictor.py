"""Serve what language_model.yaml has trained: text, byte by byte, from a checkpoint of the run.

    python -m fairlead.runtime.serving language_model_predictor:Writer --model CHECKPOINTS --port 8000

The model is a directory of checkpoints, of which the newest is taken, or one of them.
"""

import codecs
from collections.abc import Iterator

import torch
from language_model import LanguageModel  # type: ignore[import-not-found]  # beside this file, as its program

from fairlead.runtime.checkpoint.weights import read_weights


class Writer:
    """Continues text."""

    def load(self, model: str) -> None:
        torch.set_num_threads(1)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = LanguageModel().to(self.device).eval()
        self.model.load_state_dict(read_weights(model))

    @torch.no_grad()
    def generate(self, prompt: str, *, max_tokens: int, temperature: float, seed: int | None = None) -> Iterator[str]:
        dice = torch.Generator(self.device)
        dice.manual_seed(seed) if seed is not None else dice.seed()
        text = torch.tensor([list(prompt.encode()) or [10]], device=self.device)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be several bytes
        for _ in range(max_tokens):
            text = text[:, -self.model.context :]
            logits = self.model(text)[:, -1]
            if temperature == 0:
                following = logits.argmax(-1, keepdim=True)
            else:
                following = torch.multinomial((logits / temperature).softmax(-1), 1, generator=dice)
            text = torch.cat([text, following], dim=1)
            yield decoder.decode(bytes([int(following)]))

    def count_tokens(self, text: str) -> int:
        return len(text.encode())
