"""Picks replicas of text models by the prefix of the prompt, so that their caches and loaded adapters are used.

Servers such as vLLM keep the keys and values of computed tokens, and a number of LoRA adapters. A request goes to the
replica that got the longest part of its prompt before, if that is half of it. Otherwise rendezvous hashing (Thaler and
Ravishankar, IEEE/ACM ToN 1998) of the beginning of the conversation, or of the adapter if several are in use, gives the
replica, so that gateways agree without communication. A replica with much more load than the mean is left out, as in
consistent hashing with bounded loads (Mirrokni et al., SODA 2018), so that a hot prefix spreads.

Nothing here reads a clock or a socket.

See decision 139.
"""

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeVar

BLOCK = 512
"""Characters of a prompt that are remembered as one, about 128 tokens."""
MOST_BLOCKS = 512
"""Blocks of a prompt that are compared; what follows is not."""
MOST_KNOWN = 32_768
"""Blocks that are remembered of an endpoint, about 4 million tokens; the least recently used go first."""
MOST_HOLDERS = 16
"""Replicas that are remembered for a block, the latest first."""
ALIKE = 128
"""Consecutive requests for one model after which the endpoint counts as one without adapters."""
OPENING = 2_048
"""Characters of a plain prompt that count as the beginning of its conversation."""
MATCH = 0.5
"""Least part of a prompt that a replica must have got before to be preferred."""
BOUND = 1.5
"""Load of a replica, relative to the mean, from which it gets no prompt that it has; others only up to the mean."""
BLOCKS_A_REQUEST = 16
"""Blocks to compute that count as much as a request: 2,048 tokens, which servers compute in one step."""


class Prompt(NamedTuple):
    """The parts of a request that are compared.

    Attributes:
        model: The requested model or adapter.
        blocks: Hashes of the prompt up to the end of each block.
        opening: Hash of the beginning of the conversation: all up to the first message of the user.
    """

    model: str
    blocks: tuple[bytes, ...]
    opening: bytes


class Loaded(Protocol):
    """A replica, its load in requests, and the number of the latest one that it got."""

    turn: int

    @property
    def id(self) -> str: ...

    @property
    def load(self) -> float: ...


R = TypeVar("R", bound=Loaded)


def read_prompt(path: bytes, body: bytes) -> Prompt | None:
    """Read the prompt of a request to OpenAI's routes; None for other requests, and for bodies that are not theirs."""
    if not path.endswith((b"/completions", b"/responses")) or not body.startswith((b"{", b" ", b"\n", b"\r", b"\t")):
        return None
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the replica says what is wrong with it
    if not isinstance(fields, dict):
        return None
    model = fields.get("model")
    model = model if isinstance(model, str) else ""
    content = next((fields[key] for key in ("messages", "prompt", "input") if key in fields), None)
    head = f"{model}\0{_text(fields['tools'])}" if "tools" in fields else f"{model}\0"
    if isinstance(content, list) and content and all(isinstance(message, dict) for message in content):
        texts = [f"{message.get('role')}\0{_text(message.get('content'))}\0" for message in content]
        first = next((at for at, message in enumerate(content) if message.get("role") == "user"), len(content) - 1)
        opening = "".join(texts[: first + 1])
        text = "".join(texts)
    elif content:
        text = _text(content)
        opening = text[:OPENING]
    else:
        return None
    hashed = blake2b(head.encode("utf-8", "replace"), digest_size=8)
    start = hashed.copy()
    start.update(opening.encode("utf-8", "replace"))
    blocks = []
    for at in range(0, min(len(text), MOST_BLOCKS * BLOCK) - BLOCK + 1, BLOCK):
        hashed.update(text[at : at + BLOCK].encode("utf-8", "replace"))
        blocks.append(hashed.digest())
    return Prompt(model, tuple(blocks), start.digest())


class PrefixAffinity:
    """The memory of an endpoint: which replicas got which blocks and adapters; bounded, and lost with the process."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._model: str | None = None
        self._alike = ALIKE

    def choose(self, prompt: Prompt, replicas: Sequence[R], places: float) -> R | None:
        """Return the replica for a prompt; None without replicas.

        Args:
            replicas: Those with room.
            places: Requests that a replica serves at once without slowing down; it is not left out below this load.
        """
        if not replicas:
            return None
        mean = (sum(replica.load for replica in replicas) + 1) / len(replicas)
        least = min(replica.load for replica in replicas)
        most = max(places, BOUND * mean)
        open_ = [replica for replica in replicas if replica.load < most or replica.load == least]
        matches = self.matches(prompt, {replica.id for replica in open_})
        longest = max(matches.values(), default=0)
        if longest and longest >= MATCH * len(prompt.blocks):
            best = [replica for replica in open_ if matches.get(replica.id) == longest]
            return min(best, key=lambda replica: (replica.load, replica.turn))
        if self._alike < ALIKE:
            return max(open_, key=lambda replica: weight(prompt.model.encode("utf-8", "replace"), replica.id))
        near = [replica for replica in open_ if replica.load <= math.ceil(mean)]
        return max(near, key=lambda replica: weight(prompt.opening, replica.id))

    def load_of(self, prompt: Prompt, replica: str) -> float:
        """Return the load of computing a prompt at a replica, in requests, beside the request itself."""
        return (len(prompt.blocks) - self.matches(prompt, (replica,)).get(replica, 0)) / BLOCKS_A_REQUEST

    def matches(self, prompt: Prompt, ids: Iterable[str]) -> Mapping[str, int]:
        """Return how many blocks of a prompt replicas got before, for those that got any."""
        num_blocks: dict[str, int] = {}
        left = set(ids)
        for number, block in enumerate(prompt.blocks, 1):
            left.intersection_update(self._known.get(block, ()))
            if not left:
                break
            for replica_id in left:
                num_blocks[replica_id] = number
        return num_blocks

    def note(self, prompt: Prompt, replica: str) -> None:
        """Record that a replica gets a prompt."""
        if prompt.model == self._model:
            self._alike += 1
        else:
            self._alike = 0 if self._model is not None else ALIKE
            self._model = prompt.model
        for block in prompt.blocks:
            self._note_block(block, replica)

    def _note_block(self, block: bytes, replica: str) -> None:
        holders = self._known.pop(block, ())
        if not holders or holders[0] != replica:
            holders = (replica, *(holder for holder in holders if holder != replica))[:MOST_HOLDERS]
        self._known[block] = holders
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    @property
    def num_known(self) -> int:
        """Return how many blocks are remembered."""
        return len(self._known)


def weight(key: bytes, replica: str) -> bytes:
    """Return the weight of a replica for a key; the highest one is chosen. Gateways compute the same."""
    return blake2b(replica.encode(), digest_size=8, key=key[:64]).digest()


def _text(content: Any) -> str:
    """Return the content of a message or prompt as text, the same for equal contents."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
