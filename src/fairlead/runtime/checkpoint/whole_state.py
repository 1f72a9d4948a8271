"""States of modules and optimizers whose tensors are whole on each rank, by names without wrapper prefixes.

The names and trees are those of ``torch.distributed.checkpoint.state_dict``, which is not imported because that takes
seconds.
"""

import sys
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT_WRAPPER = "_checkpoint_wrapped_module."


def is_whole(module: torch.nn.Module) -> bool:
    """Return whether no tensor of the module is sharded over ranks, by FSDP 1 or 2 or another use of DTensor."""
    fsdp: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    return not any(isinstance(item, fsdp) for item in module.modules()) and not any(
        hasattr(item, "device_mesh") for item in chain(module.parameters(), module.buffers())
    )


def plain_name(root: torch.nn.Module, key: str) -> str:
    """Return the name of a parameter or buffer without the prefixes of DDP, compile and activation checkpoints."""
    optimized: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    *modules, last = key.replace(CHECKPOINT_WRAPPER, "").split(".")
    names: list[str] = []
    at: Any = root
    for name in modules:
        if not (isinstance(at, DistributedDataParallel) and name == "module") and not (
            isinstance(at, optimized) and name == "_orig_mod"
        ):
            names.append(name)
        at = getattr(at, name)
    return ".".join((*names, last))


def module_state(root: torch.nn.Module) -> dict[str, Any]:
    """Return the state of all modules below the root."""
    return {plain_name(root, key): value for key, value in root.state_dict().items()}


def load_module_state(root: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Load what ``module_state`` returned."""
    root.load_state_dict({key: state[plain_name(root, key)] for key in root.state_dict()})


def optimizer_state(
    root: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the states of parameters by name, and the groups with the names of their parameters."""
    named_by = names(root)
    moments: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for optimizer in optimizers:
        named = [named_by[id(item)] for group in optimizer.param_groups for item in group["params"]]
        state = optimizer.state_dict()
        moments.update((named[number], value) for number, value in state["state"].items())
        groups += [
            {**group, "params": [named[number] for number in group["params"]]} for group in state["param_groups"]
        ]
    return moments, groups


def load_optimizer_state(
    root: torch.nn.Module,
    optimizers: Iterable[torch.optim.Optimizer],
    moments: Mapping[str, Any],
    groups: Iterable[Mapping[str, Any]],
) -> None:
    """Load the result of ``optimizer_state`` into as many groups of the same parameters."""
    named_by = names(root)
    remaining = iter(groups)
    for optimizer in optimizers:
        named = [named_by[id(item)] for group in optimizer.param_groups for item in group["params"]]
        state = {number: moments[name] for number, name in enumerate(named) if name in moments}
        own = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict(
            {"state": state, "param_groups": [{**next(remaining), "params": group["params"]} for group in own]}
        )


def names(root: torch.nn.Module) -> dict[int, str]:
    """Return the name of each parameter by its id."""
    return {id(item): plain_name(root, key) for key, item in root.named_parameters()}
