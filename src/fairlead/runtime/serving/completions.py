"""OpenAI's completions and chat completions: parses and checks requests, and builds responses and chunks.

Parameters that Fairlead's text generator cannot honour (tools, several choices, log probabilities, penalties ...) are
refused unless their value is neutral. Source: OpenAI's API reference.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from fairlead.runtime.serving.predictor import SAMPLING, Predictor
from fairlead.runtime.serving.problems import BadRequest, NotServed

MAX_TOKENS = 1 << 20
DEFAULT_TOKENS = {"text_completion": 16, "chat.completion": 256}
MAX_STOPS = 16
MAX_STOP = 256

# Keys with their neutral values; any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, None), "best_of": (1, None), "echo": (False, None), "suffix": (None, ""), "logprobs": (False, None),
    "top_logprobs": (None,), "frequency_penalty": (0, None), "presence_penalty": (0, None), "logit_bias": (None, {}),
    "tools": (None, []), "tool_choice": (None, "none", "auto"), "response_format": (None, {"type": "text"}),
    "store": (False, None), "service_tier": (None, "auto", "default"), "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
}  # fmt: skip
_FREE = ("user", "metadata", "safety_identifier", "prompt_cache_key")  # for the client's records; without effect
_KNOWN = ("model", "max_tokens", "temperature", "stop", "stream", "stream_options", *SAMPLING)


@dataclass
class Completion:
    """A requested text and its state.

    Attributes:
        kind: "text_completion" or "chat.completion".
        sampling: Values of the parameters in ``SAMPLING`` that were given.
        text: The text so far, cut before a stop sequence.
        pieces: Number of generated pieces, which counts as the number of tokens.
        finish: OpenAI's finish reason, once it is complete.
    """

    kind: str
    model: str
    prompt: str
    max_tokens: int
    temperature: float
    sampling: dict[str, Any]
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    id: str
    created: int
    text: str = ""
    pieces: int = 0
    finish: str | None = None
    _held: str = field(default="", repr=False)

    def add(self, piece: str) -> str:
        """Add a piece and return the text that can be sent: all but a possible beginning of a stop sequence."""
        self.pieces += 1
        pending = self._held + piece
        places = [at for at in (pending.find(stop) for stop in self.stops) if at >= 0]
        if places:
            self.finish = "stop"
            pending, self._held = pending[: min(places)], ""
        else:
            keep = max((_overlap(pending, stop) for stop in self.stops), default=0)
            pending, self._held = pending[: len(pending) - keep], pending[len(pending) - keep :]
        self.text += pending
        return pending

    def end(self) -> str:
        """Record that the text is complete and return the text held back."""
        rest, self._held = self._held, ""
        if self.finish is None:
            self.finish = "length" if self.pieces >= self.max_tokens else "stop"
        self.text += rest
        return rest

    def answer(self, predictor: Predictor) -> dict[str, Any]:
        """Return the complete response."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish, "logprobs": None}
        if self.kind == "chat.completion":
            choice["message"] = {"role": "assistant", "content": self.text}
        else:
            choice["text"] = self.text
        answer = {"id": self.id, "object": self.kind, "created": self.created, "model": self.model, "choices": [choice]}
        if predictor.counts_tokens:
            answer["usage"] = self.usage(predictor)
        return answer

    def chunk(self, text: str, *, first: bool = False, last: bool = False) -> dict[str, Any]:
        """Return one chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish if last else None, "logprobs": None}
        if self.kind == "chat.completion":
            choice["delta"] = {**({"role": "assistant"} if first else {}), **({} if last else {"content": text})}
        else:
            choice["text"] = text
        return self._chunk([choice])

    def usage_chunk(self, predictor: Predictor) -> dict[str, Any]:
        """Return the last chunk of a stream, which has the usage."""
        return {**self._chunk([]), "usage": self.usage(predictor)}

    def usage(self, predictor: Predictor) -> dict[str, int]:
        """Return the tokens of prompt and response, if the predictor counts them; call it in the predict thread."""
        prompt = predictor.count_tokens(self.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": self.pieces, "total_tokens": prompt + self.pieces}

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.kind == "chat.completion" else self.kind
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def read_completion(fields: dict[str, Any], kind: str, predictor: Predictor, model: str) -> Completion:
    """Parse a request, except the prompt of a chat, which the predictor builds; see ``messages_of``.

    Raises:
        BadRequest: A value is wrong, or cannot be honoured.
        NotFound: The request is for another model.
    """
    _check_keys(fields, kind)
    requested = fields.get("model")
    if not isinstance(requested, str):
        raise BadRequest(f"model is {_short(requested)}; give {model!r}")
    if requested != model:
        raise NotServed(f"there is no model {_short(requested)}; there is {model!r}")
    limit = fields.get("max_tokens")
    if kind == "chat.completion" and fields.get("max_completion_tokens") is not None:
        limit = fields["max_completion_tokens"]
    max_tokens = _whole("max_tokens", DEFAULT_TOKENS[kind] if limit is None else limit, 1, MAX_TOKENS)
    temperature = _fraction("temperature", fields.get("temperature"), 1.0, 0.0, 2.0)
    sampling: dict[str, Any] = {}
    if fields.get("top_p") is not None:
        sampling["top_p"] = _fraction("top_p", fields["top_p"], 1.0, 0.0, 1.0)
    if fields.get("seed") is not None:
        sampling["seed"] = _whole("seed", fields["seed"], -(1 << 63), (1 << 63) - 1)
    for name in [name for name in sampling if name not in predictor.sampling]:
        if (name, sampling.pop(name)) != ("top_p", 1.0):
            raise BadRequest(f"{name} is not supported: generate() of this predictor takes none")
    stream = _truth("stream", fields.get("stream"))
    include_usage = _stream_options(fields.get("stream_options"), stream, predictor)
    prefix = "chatcmpl-" if kind == "chat.completion" else "cmpl-"
    return Completion(
        kind=kind,
        model=model,
        prompt="" if kind == "chat.completion" else _prompt(fields.get("prompt")),
        max_tokens=max_tokens,
        temperature=temperature,
        sampling=sampling,
        stops=_stops(fields.get("stop")),
        stream=stream,
        include_usage=include_usage,
        id=prefix + uuid.uuid4().hex,
        created=int(time.time()),
    )


def messages_of(fields: dict[str, Any]) -> list[dict[str, str]]:
    """Return the messages of a request, each with its role and its text.

    Raises:
        BadRequest: It is not a list of messages, or a message has more than text.
    """
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest('messages is missing; give [{"role": "user", "content": "..."}]')
    return [_message(number, message) for number, message in enumerate(messages)]


def _message(number: int, message: Any) -> dict[str, str]:
    where = f"messages[{number}]"
    if not isinstance(message, dict):
        raise BadRequest(f"{where} is {_short(message)}; give an object")
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant"):
        raise BadRequest(f"{where} has the role {_short(role)}; give system, developer, user or assistant")
    if isinstance(content, list):
        content = _joined(content)
    if not isinstance(content, str):
        raise BadRequest(f"{where} has content that is not text, which is all that this model takes")
    return {"role": role, "content": content}


def _check_keys(fields: dict[str, Any], kind: str) -> None:
    own = ("messages", "max_completion_tokens") if kind == "chat.completion" else ("prompt",)
    for key, value in fields.items():
        if key in _KNOWN or key in own or key in _FREE:
            continue
        if key not in _NEUTRAL:
            raise BadRequest(f"{_short(key)} is not supported; there is {', '.join((*own, *_KNOWN))}")
        # True == 1 in Python, but a JSON true is not a 1.
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in _NEUTRAL[key]
        ):
            raise BadRequest(f"{key} is {_short(value)}, which is not supported; leave it out")


def _prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest(f"prompt is {_short(prompt)}; give one text")
    return prompt


def _stops(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    fit = isinstance(stops, list) and all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in stops)
    if not fit or len(stops) > MAX_STOPS:
        rule = f"give a text, or a list of at most {MAX_STOPS}, each of 1 to {MAX_STOP} characters"
        raise BadRequest(f"stop is {_short(value)}; {rule}")
    return tuple(stops)


def _stream_options(options: Any, stream: bool, predictor: Predictor) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise BadRequest('stream_options is for "stream": true, and is an object')
    for key in options:
        if key not in ("include_usage", "include_obfuscation"):
            raise BadRequest(f"stream_options has {_short(key)}, which is not supported; it may have include_usage")
    _truth("include_obfuscation", options.get("include_obfuscation"))
    wanted = _truth("include_usage", options.get("include_usage"))
    if wanted and not predictor.counts_tokens:
        raise BadRequest("include_usage is not supported: this predictor has no count_tokens()")
    return wanted


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{name} is {_short(value)}; give a whole number, {low} to {high}")
    return value


def _fraction(name: str, value: Any, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadRequest(f"{name} is {_short(value)}; give a number, {low:g} to {high:g}")
    return float(value)


def _truth(name: str, value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} is {_short(value)}; give true or false")
    return bool(value)


def _joined(parts: list[Any]) -> str | None:
    """Return the text of a message given in parts; None if one of them is not text."""
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of the text that is a prefix of the stop sequence."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
