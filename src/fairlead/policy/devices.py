"""Which devices a request means: by model, with alternatives, and by memory."""

import re
from functools import lru_cache

ALTERNATIVES = "|"


@lru_cache(maxsize=4096)
def matches(model: str, memory_bytes: int, wanted: str | None, min_memory_bytes: int | None) -> bool:
    """Whether a device is of the kind asked for; ``wanted`` is one model or several, as in ``A100|H100``.

    A model is part of what the driver calls the device, whatever the case, but ``A10`` is not ``A100``.
    """
    if min_memory_bytes is not None and memory_bytes < min_memory_bytes:
        return False
    if wanted is None:
        return True
    names = (name.strip() for name in wanted.split(ALTERNATIVES))
    return any(name and re.search(re.escape(name) + _end(name), model, re.IGNORECASE) for name in names)


def _end(name: str) -> str:
    return r"(?!\d)" if name[-1].isdigit() else ""
