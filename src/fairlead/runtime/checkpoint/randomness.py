"""Captures and restores the random generators of one rank, of the libraries that the program has loaded."""

import base64
import json
import random
import sys
from typing import Any

from fairlead.runtime.errors import CheckpointMismatch


def capture() -> dict[str, Any]:
    """Return the current states in plain values: Python's, numpy's global one, torch's for CPU and the current GPU."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tobytes(), *rest)
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = bytes(torch.get_rng_state().numpy())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = bytes(torch.cuda.get_rng_state().numpy())
    return state


def to_json(state: dict[str, Any]) -> bytes:
    """Serialize states, bytes as base64."""
    return json.dumps(state, default=lambda data: {"base64": base64.b64encode(data).decode()}).encode()


def from_json(data: bytes) -> dict[str, Any]:
    """Parse what ``to_json`` returned.

    Raises:
        CheckpointMismatch: It is something else.
    """
    try:
        state: dict[str, Any] = json.loads(data, object_hook=_bytes)
        version, numbers, gauss = state["python"]
        return {**state, "python": (version, tuple(numbers), gauss)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointMismatch("its states of random generators cannot be read") from error


def _bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


def restore(state: dict[str, Any]) -> None:
    """Restore the generators, except those of libraries that this program has not loaded.

    Raises:
        CheckpointMismatch: These are not states of generators.
    """
    try:
        _restore(state)
    except (ValueError, TypeError, LookupError, OverflowError, RuntimeError) as error:
        raise CheckpointMismatch(f"its states of random generators cannot be restored: {error}") from error


def _restore(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(_tensor(torch, state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_tensor(torch, state["cuda"]))


def _tensor(torch: Any, data: bytes) -> Any:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
