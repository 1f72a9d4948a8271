"""Sends the state of one rank to ranks that join, over the process group: tensors one by one, the rest pickled.

The pickle is loaded as one of a checkpoint is, so that a peer cannot run programs here by it.
"""

import pickle
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
import torch.distributed as dist

from fairlead.runtime.checkpoint.unpickling import loads


class _Slot:
    """A placeholder for a tensor, which is sent separately from the rest of its state."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape = tuple(value.shape)
        self.dtype = value.dtype


def broadcast_state(state: Mapping[str, Any], source: int, *, takes: bool, trust: bool = False) -> None:
    """Send the source's state to all ranks; collective.

    Args:
        state: Objects with ``state_dict``, and dictionaries, by the same names on all ranks.
        source: Rank, in the group, that has the state.
        takes: Whether this rank loads the state; a rank that already has it only takes part in the collective.
        trust: Load objects of any class from the source.

    Raises:
        CheckpointMismatch: The state holds objects of other classes, and the source is not trusted.
    """
    is_source = dist.get_rank() == source
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors({name: _state(value) for name, value in state.items()}, tensors) if is_source else None
    data = _broadcast(pickle.dumps(skeleton) if is_source else b"", source)
    slot_name = f"{_Slot.__module__}.{_Slot.__qualname__}"
    sent = skeleton if is_source else loads(data, f"the state of rank {source}", trust=trust, also={slot_name: _Slot})
    received: list[torch.Tensor] = []
    for number, slot in enumerate(_slots(sent)):
        if is_source:
            buffer = tensors[number].detach().cpu().contiguous()
        else:
            buffer = torch.empty(slot.shape, dtype=slot.dtype)
        dist.broadcast(buffer, src=source)
        if takes:
            received.append(buffer)
    if takes:
        whole = _with_tensors(sent, iter(received))
        for name, value in state.items():
            _load(value, whole[name])


def _broadcast(data: bytes, source: int) -> bytes:
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=source)
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(buffer, src=source)
    return buffer.numpy().tobytes()


def _state(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else dict(value)


def _load(value: Any, state: Any) -> None:
    if hasattr(value, "load_state_dict"):
        value.load_state_dict(state)
    elif isinstance(value, MutableMapping):
        value.clear()
        value.update(state)


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Slot(value)
    if isinstance(value, Mapping):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_without_tensors(item, tensors) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    pickle.dumps(value)  # fails here rather than in the middle of a collective
    return value


def _slots(value: Any) -> list[_Slot]:
    if isinstance(value, _Slot):
        return [value]
    if isinstance(value, Mapping):
        return [slot for item in value.values() for slot in _slots(item)]
    if isinstance(value, (list, tuple)):
        return [slot for item in value for slot in _slots(item)]
    return []


def _with_tensors(value: Any, tensors: Any) -> Any:
    if isinstance(value, _Slot):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with_tensors(item, tensors) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value
