"""Sends the state of one rank to ranks that join, over the process group: tensors one by one, the rest pickled."""

import pickle
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
import torch.distributed as dist


class _Slot:
    """A placeholder for a tensor, which is sent separately from the rest of its state."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape = tuple(value.shape)
        self.dtype = value.dtype


def broadcast_state(state: Mapping[str, Any], source: int, *, takes: bool) -> None:
    """Send the source's state to all ranks; collective.

    Args:
        state: Objects with ``state_dict``, and dictionaries, by the same names on all ranks.
        source: Rank, in the group, that has the state.
        takes: Whether this rank loads the state; a rank that already has it only takes part in the collective.
    """
    is_source = dist.get_rank() == source
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors({name: _state(value) for name, value in state.items()}, tensors) if is_source else None
    sent: list[Any] = [skeleton]
    dist.broadcast_object_list(sent, src=source)
    received: list[torch.Tensor] = []
    for number, slot in enumerate(_slots(sent[0])):
        if is_source:
            buffer = tensors[number].detach().cpu().contiguous()
        else:
            buffer = torch.empty(slot.shape, dtype=slot.dtype)
        dist.broadcast(buffer, src=source)
        if takes:
            received.append(buffer)
    if takes:
        whole = _with_tensors(sent[0], iter(received))
        for name, value in state.items():
            _load(value, whole[name])


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
