"""Modules, optimizers and sharded tensors, saved once for all ranks in the format of PyTorch's distributed checkpoint.

PyTorch's own functions save tensors that are sharded over the ranks. Importing them takes seconds, so they are imported
at resume, and only in that case; ``distcp`` writes and reads tensors that are whole on each rank. This module is
imported only if the program has imported torch.
"""

import copy
import hashlib
import importlib
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from fairlead.runtime.channels import Alone, Gloo
from fairlead.runtime.checkpoint import distcp, whole_state
from fairlead.runtime.checkpoint.manifest import Manifest
from fairlead.runtime.checkpoint.phases import Phase, rank_directory
from fairlead.runtime.checkpoint.unpickling import load_values
from fairlead.runtime.errors import CheckpointMismatch

if TYPE_CHECKING:
    from fairlead.runtime.channels import Channel

FOLDER = "tensors"
GANG = "gang"
RANK = "rank"


class Tensors:
    """The part of a program's objects that PyTorch saves collectively.

    If the ranks run without torch.distributed, each rank saves this part separately.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        state: Mapping[str, object],
        channel: "Callable[[], Channel]",
        *,
        trust: bool = False,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._channel = channel
        self._state = state
        self._trust = trust
        self._modules = {name: value for name, value in state.items() if isinstance(value, torch.nn.Module)}
        self._parameters = {id(item) for module in self._modules.values() for item in module.parameters()}
        self._staging = Staging()
        self._saved: tuple[str, ...] = ()
        self.num_bytes = 0
        """Approximate bytes of the newest snapshot that this rank writes."""
        if self._is_sharded() or self._sharded_others():
            # Imported now, as no save may wait for an import. The first call of the second module imports the first.
            for name in ("torch._dynamo", "torch.distributed.checkpoint.state_dict"):
                importlib.import_module(name)

    def describe(self) -> dict[str, Any]:
        return {"shared": list(self._saved), "tensors": self._place()}

    def snapshot(self, *, asynchronous: bool) -> tuple[set[str], list[Phase]]:
        """Return the names that this part saves and the phases that write them. Calls into PyTorch from all ranks."""
        optimizers = {name: value for name, value in self._optimizers().items() if _has_state(value)}
        others = self._sharded_others()
        self._saved = tuple(sorted({*self._modules, *optimizers, *others}))
        if not self._saved:
            self.num_bytes = 0
            return set(), []
        is_sharded = self._is_sharded() or bool(others)
        tree = {**self._tree(optimizers, is_sharded=is_sharded), "others": others}
        held = sum(distcp.num_bytes(_local_part(value)) for _, value in distcp.flatten(tree))
        self.num_bytes = held if is_sharded or self._place() == RANK else held // self._world_size
        if asynchronous:
            tree = self._staging.copy(tree)
        return set(self._saved), self._writing(tree, is_sharded=is_sharded)

    def _writing(self, tree: dict[str, Any], *, is_sharded: bool) -> list[Phase]:
        channel, group, folder = self._peers(), self._group(), self._folder(self._place())
        values: dict[str, tuple[distcp.ObjectPath, Any]] = {}
        share: set[str] | None = None
        entries: list[Any] = []

        def agree(directory: Path) -> None:
            nonlocal share
            (directory / folder).mkdir(parents=True, exist_ok=True)
            values.update((distcp.flat_name(path), (path, value)) for path, value in distcp.flatten(tree))
            own = {name: distcp.num_bytes(value) for name, (_, value) in values.items()}
            digest = hashlib.sha256(repr(own).encode()).hexdigest()
            heads = channel.gather([is_sharded, digest])
            if any(sharded for sharded, _ in heads):
                return
            alike = all(other == digest for _, other in heads)
            share = distcp.share_out([own] * len(heads) if alike else channel.gather(own))[channel.rank]

        def write(directory: Path) -> None:
            if share is not None:
                chosen = [value for name, value in values.items() if name in share]
                entries.extend(distcp.write(directory / folder, channel.rank, chosen))
                return
            import torch.distributed.checkpoint as dcp

            # Files are flushed when their checksums are computed; flushing once is enough.
            writer = dcp.FileSystemWriter(directory / folder, sync_files=False)
            self._together(lambda: dcp.save(tree, storage_writer=writer, process_group=group, no_dist=group is None))

        def finish(directory: Path) -> None:
            if share is not None:
                everything = channel.gather(entries)
                if channel.rank == 0:
                    distcp.write_metadata(directory / folder, [entry for part in everything for entry in part])

        return [agree, write, finish]

    def loading(self, manifest: Manifest) -> list[Phase]:
        """Return the phases that load the part that was saved once for all ranks."""
        shared = set(manifest.content.get("shared", ()))
        if not shared:
            return []
        place = manifest.content.get("tensors", GANG)
        tree: dict[str, Any] = {}
        chosen: dict[str, torch.optim.Optimizer] = {}
        channel, group = self._peers(), self._group()
        is_sharded = False
        reader: distcp.CheckpointReader
        adopted: dict[str, Any] = {}

        def agree(directory: Path) -> None:
            nonlocal is_sharded
            own = self._is_sharded() or bool(self._sharded_others())
            is_sharded = any(channel.gather(own)) if place == GANG else own

        def prepare(directory: Path) -> None:
            nonlocal is_sharded, reader
            if place == RANK and manifest.world_size != self._world_size:
                raise CheckpointMismatch(
                    f"{manifest.world_size} ranks without torch.distributed saved it, and {self._world_size} run now"
                )
            unknown = sorted(shared - self._state.keys())
            if unknown:
                raise CheckpointMismatch(f"it holds {', '.join(unknown)}, which run.resume() was not given")
            chosen.update((name, value) for name, value in self._optimizers().items() if name in shared)
            reader = distcp.CheckpointReader(directory / self._folder(place), trust=self._trust)
            # Keys of dicts in an optimizer's state may be numbers, which only a step of the optimizer itself can show.
            is_sharded = is_sharded or any(path[0] == "moments" and len(path) > 3 for path in reader.paths.values())
            others = {name: _state(self._state[name]) for name in self._others(shared)}
            tree.update(self._tree(chosen, is_sharded=is_sharded), others=others)
            self._fit(tree, set(reader.paths))
            adopted.update(self._adopted(tree, reader))
            for key in adopted:
                del tree["groups"][key]
            if not is_sharded:
                self._expect(tree, reader)

        def load(directory: Path) -> None:
            if not is_sharded:
                self._read(tree, reader)
                return
            import torch.distributed.checkpoint as dcp

            source = dcp.FileSystemReader(directory / self._folder(place))
            alone = group is None or place == RANK
            chosen_group = None if alone else group
            planner = _load_planner(self._trust)
            self._together(
                lambda: dcp.load(
                    tree, storage_reader=source, planner=planner, process_group=chosen_group, no_dist=alone
                )
            )

        def assign(directory: Path) -> None:
            tree["groups"].update(adopted)
            self._assign(tree, list(chosen.values()), is_sharded=is_sharded)
            for name, state in tree["others"].items():
                value: Any = self._state[name]
                if hasattr(value, "load_state_dict"):
                    value.load_state_dict(state)
                else:
                    value.update(state)

        return [agree, prepare, load, assign]

    def _expect(self, tree: dict[str, Any], reader: distcp.CheckpointReader) -> None:
        """Refuse a checkpoint that does not fit the program, before anything is changed."""
        for path, value in distcp.flatten({"modules": tree["modules"], "others": tree["others"]}):
            reader.expect(path, value)

    def _adopted(self, tree: dict[str, Any], reader: distcp.CheckpointReader) -> dict[str, Any]:
        """Return settings for parameter groups that the checkpoint divides differently, as under another split."""
        saved: dict[str, Any] = {}
        for name, path in reader.paths.items():
            if path[0] == "groups":
                distcp.put(saved, path[1:], reader.read(name))
        own = {key: groups for key, groups in tree["groups"].items() if key not in saved}
        groups = [group for saved_groups in saved.values() for group in saved_groups]
        return {key: [_adopt(group, groups) for group in own_groups] for key, own_groups in own.items()}

    def _read(self, tree: dict[str, Any], reader: distcp.CheckpointReader) -> None:
        """Read into the tree: tensors of modules in place, the state of optimizers as it was saved."""
        for path, value in list(distcp.flatten({"modules": tree["modules"], "others": tree["others"]})):
            read = reader.read(distcp.flat_name(path))
            if isinstance(value, torch.Tensor):
                value.detach().copy_(read)
            else:
                distcp.put(tree, path, read)
        groups: dict[str, Any] = tree["groups"]
        names = self._names()
        state: dict[str, Any] = {"moments": {}, "groups": {}}
        for name, path in reader.paths.items():
            if (path[0] == "moments" and path[1] in names) or (path[0] == "groups" and path[1] in groups):
                distcp.put(state, path, reader.read(name))
        tree["moments"] = state["moments"]
        tree["groups"] = {
            key: [like(saved, own) for saved, own in zip(state["groups"][key], groups[key], strict=True)]
            for key in groups
        }

    def _assign(self, tree: dict[str, Any], optimizers: list[torch.optim.Optimizer], *, is_sharded: bool) -> None:
        groups: list[Any] = next(iter(tree["groups"].values()), [])
        if not is_sharded:
            if self._modules:
                whole_state.load_module_state(self._root(), tree["modules"])
            whole_state.load_optimizer_state(self._root(), optimizers, tree["moments"], groups)
            return
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            set_model_state_dict,
            set_optimizer_state_dict,
        )

        if self._modules:
            set_model_state_dict(self._root(), tree["modules"])
        if optimizers:
            set_optimizer_state_dict(
                self._root(),
                optimizers,
                {"state": tree["moments"], "param_groups": groups},
                # A parameter that was never trained has no state, neither in the checkpoint nor here.
                options=StateDictOptions(strict=False),
            )

    def _is_sharded(self) -> bool:
        return not all(whole_state.is_whole(module) for module in self._modules.values())

    def _names(self) -> set[str]:
        """Return the names of parameters in the tree of the optimizers."""
        return set(whole_state.names(self._root()).values())

    def _peers(self) -> "Channel":
        """Return the channel of the ranks that save the same tensors together: all ranks, or only this one."""
        channel = self._channel() if dist_runs() else None
        return channel if isinstance(channel, Gloo) else Alone()

    def _root(self) -> torch.nn.Module:
        """Return one module that holds all modules, so that an optimizer may span several of them."""
        root = torch.nn.Module()
        for name, module in self._modules.items():
            # A prefix avoids conflicts with attributes that every module has, such as `type` or `train`.
            root.add_module(f"_{name}", module)
        return root

    def _tree(self, optimizers: Mapping[str, torch.optim.Optimizer], *, is_sharded: bool) -> dict[str, Any]:
        if not self._modules:
            return {"modules": {}, "moments": {}, "groups": {}}
        modules: Any
        moments: Any
        groups: Any
        if is_sharded:
            from torch.distributed.checkpoint.state_dict import get_state_dict

            modules, optim = get_state_dict(self._root(), list(optimizers.values()))
            moments, groups = optim.get("state", {}), optim.get("param_groups", [])
        else:
            modules = whole_state.module_state(self._root())
            moments, groups = whole_state.optimizer_state(self._root(), optimizers.values())
        # Ranks of a pipeline hold different parameters; a separate key for each set keeps their groups apart.
        names = repr([group["params"] for group in groups])
        key = hashlib.sha256(names.encode()).hexdigest()[:16]
        return {"modules": dict(modules), "moments": moments, "groups": {key: groups} if groups else {}}

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            name: value
            for name, value in self._state.items()
            if isinstance(value, torch.optim.Optimizer)
            and all(id(item) in self._parameters for group in value.param_groups for item in group["params"])
        }

    def _others(self, names: set[str]) -> list[str]:
        return sorted(names - self._modules.keys() - self._optimizers().keys())

    def _sharded_others(self) -> dict[str, Any]:
        """Return the other objects whose tensors are sharded over the ranks."""
        known = {*self._modules, *self._optimizers()}
        states = {name: _state(value) for name, value in self._state.items() if name not in known}
        return {name: state for name, state in states.items() if _any_sharded(state)}

    def _fit(self, tree: dict[str, Any], saved: set[str]) -> None:
        """Drop optimizer state that the checkpoint lacks, and refuse a checkpoint with parameters the program lacks."""
        for name in list(tree["moments"]):
            prefix = f"moments.{name}."
            if not any(key.startswith(prefix) for key in saved):
                del tree["moments"][name]
        surplus = sorted(
            key.removeprefix("modules._")
            for key in saved
            if key.startswith("modules.")
            and not any(key == f"modules.{name}" or key.startswith(f"modules.{name}.") for name in tree["modules"])
        )
        if surplus and not self._spread():
            raise CheckpointMismatch(f"it holds {surplus[0]} and {len(surplus) - 1} more that the program lacks")

    def _spread(self) -> bool:
        """Return whether other ranks may hold other parameters, as in a pipeline."""
        return dist_runs() and dist.get_world_size() > 1

    def _group(self) -> "dist.ProcessGroup | None":
        if not dist_runs():
            return None
        channel = self._channel()
        return channel.group if isinstance(channel, Gloo) else None

    def _folder(self, place: str) -> str:
        return FOLDER if place == GANG else f"{rank_directory(self._rank)}/{FOLDER}"

    def _place(self) -> str:
        return RANK if self._world_size > 1 and not dist_runs() else GANG

    def _together(self, call: Callable[[], object]) -> None:
        """Make a call that fails on all ranks if it fails on one, and raise only on the rank that has the cause."""
        import torch.distributed.checkpoint as dcp

        # A single rank, or ranks that save separately, are not a mistake here.
        warnings.filterwarnings("ignore", message="torch.distributed is")
        try:
            call()
        except dcp.CheckpointException as error:  # derives from BaseException
            failures = {rank: cause for rank, (cause, _) in error.failures.items()}
            cause = failures.get(self._rank) if self._place() == GANG else next(iter(failures.values()), None)
            if isinstance(cause, Exception):
                raise cause from None
            if not any(isinstance(item, Exception) for item in failures.values()):
                raise CheckpointMismatch(f"PyTorch cannot load it: {failures}") from error


def _load_planner(trust: bool) -> Any:
    """Return PyTorch's planner for loading, but for values that are no tensors, which it loads whatever they run."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            name = read_item.dest_index.fqn
            loaded = load_values(value.read(), distcp.FILES, trust=trust)
            if self.flatten_state_dict:
                distcp.put(self.original_state_dict, self.mappings[name], loaded)
            else:
                self.state_dict[name] = loaded

    return Planner()


class Staging:
    """Copies a state to main memory, into the same buffers each time: new memory costs as much as the copying.

    Buffers for tensors of a GPU are page-locked, into which it copies by itself at the speed of its link; otherwise
    the driver copies a second time, through a small buffer of its own.
    """

    def __init__(self) -> None:
        self._staged: dict[str, torch.Tensor] = {}
        self._locks = PageLocks()

    def copy(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a copy that shares nothing with the given tree. The previous copy must no longer be in use."""
        staged: dict[str, torch.Tensor] = {}
        devices: set[torch.device] = set()
        copied: dict[str, Any] = self._copy(tree, "", staged, devices)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._staged = staged
        self._locks.keep(_local(tensor).data_ptr() for tensor in staged.values())
        return copied

    def _copy(self, value: Any, path: str, staged: dict[str, torch.Tensor], devices: set[torch.device]) -> Any:
        if isinstance(value, torch.Tensor):
            staged[path] = self._tensor(value.detach(), self._staged.get(path), devices)
            return staged[path]
        if isinstance(value, dict):
            return {key: self._copy(item, f"{path}.{key}", staged, devices) for key, item in value.items()}
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._copy(item, f"{path}.{index}", staged, devices) for index, item in enumerate(value))
        return copy.deepcopy(value)

    def _tensor(self, source: torch.Tensor, before: torch.Tensor | None, devices: set[torch.device]) -> torch.Tensor:
        if before is None or not _alike(source, before):
            if source.device.type == "cpu":
                return source.clone()
            if source.device.type != "cuda" or hasattr(source, "to_local"):
                before = source.to("cpu")
                self._locks.add(_local(before), source.device)
                return before
            before = torch.empty_like(source, device="cpu")
            self._locks.add(before, source.device)
        _local(before).copy_(_local(source), non_blocking=True)
        if source.device.type == "cuda":
            devices.add(source.device)
        return before


class PageLocks:
    """Memory that the driver has locked, so that GPUs copy into it themselves. It is unlocked before it is freed.

    CUDA's own allocator of such memory rounds each tensor up to a power of two, which may double what a state takes.
    """

    LEAST_BYTES = 1 << 20
    """Smaller tensors may share a page with others, and are copied in microseconds."""

    def __init__(self) -> None:
        self._locked: dict[int, torch.Tensor] = {}
        weakref.finalize(self, _unlock, self._locked, ())

    def add(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Lock the memory of a tensor for copies from a GPU; without effect where the driver refuses."""
        size = tensor.numel() * tensor.element_size()
        if device.type != "cuda" or size < self.LEAST_BYTES or not tensor.is_contiguous():
            return
        refused = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, 0))
        if not refused:
            self._locked[tensor.data_ptr()] = tensor

    def keep(self, pointers: Iterable[int]) -> None:
        """Unlock all other memory."""
        _unlock(self._locked, frozenset(pointers))


def _unlock(locked: dict[int, torch.Tensor], used: Collection[int]) -> None:
    for pointer in [pointer for pointer in locked if pointer not in used]:
        torch.cuda.cudart().cudaHostUnregister(pointer)
        del locked[pointer]


def dist_runs() -> bool:
    """Return whether the program has initialized torch.distributed."""
    return dist.is_available() and dist.is_initialized()


def on_cpu(value: Any) -> Any:
    """Return the value with every tensor in main memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu")
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(on_cpu(item) for item in value)
    return value


def like(value: Any, model: Any) -> Any:
    """Return the value with every tensor on the device of the model's tensor at the same path."""
    if isinstance(value, torch.Tensor):
        return value.to(model.device) if isinstance(model, torch.Tensor) else value
    if isinstance(value, dict):
        models = model if isinstance(model, dict) else {}
        return {key: like(item, models.get(key)) for key, item in value.items()}
    return value


def _adopt(own: dict[str, Any], saved: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the group with the settings of the saved groups that have its parameters.

    Raises:
        CheckpointMismatch: Some parameter is in no saved group, or the saved groups have different settings.
    """
    names = set(own["params"])
    having = [group for group in saved if names & set(group["params"])]
    settings = [{name: value for name, value in group.items() if name != "params"} for group in having]
    if names - {name for group in having for name in group["params"]} or any(
        repr(other) != repr(settings[0]) for other in settings
    ):
        raise CheckpointMismatch("it holds no optimizer of the same groups of parameters")
    return {**like(settings[0], own), "params": own["params"]} if settings else own


def _local_part(value: Any) -> Any:
    return _local(value) if isinstance(value, torch.Tensor) else value


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _alike(source: torch.Tensor, before: torch.Tensor) -> bool:
    return (
        type(source) is type(before)
        and source.shape == before.shape
        and source.dtype == before.dtype
        and getattr(source, "placements", None) == getattr(before, "placements", None)
        and _local(source).shape == _local(before).shape
        and _local(source).layout == _local(before).layout
    )


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer has state; otherwise PyTorch would create one by a step with zero gradients."""
    return any(isinstance(item, torch.Tensor) for state in optimizer.state.values() for item in state.values())


def _any_sharded(state: Any) -> bool:
    if isinstance(state, dict):
        return any(_any_sharded(item) for item in state.values())
    if isinstance(state, list | tuple):
        return any(_any_sharded(item) for item in state)
    return isinstance(state, torch.Tensor) and hasattr(state, "device_mesh")


def _state(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else dict(value)
