"""Reads and writes PyTorch's distributed checkpoint files without its code, which takes seconds to import.

It writes tensors that are whole on the rank that writes them. ``torch.distributed.checkpoint`` can read these files,
and this module can read the files that it writes; shards are joined. Nothing is imported from torch beyond ``import
torch``.
"""

import copyreg
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fairlead.runtime.checkpoint.unpickling import load_values
from fairlead.runtime.errors import CheckpointMismatch
from fairlead.runtime.paths import below

PACKAGE = "torch.distributed.checkpoint"
VERSION = "1.0.0"
METADATA = ".metadata"
FILES = "a file of its tensors"
RECORDS = {
    "metadata": (
        "Metadata", "MetadataIndex", "BytesStorageMetadata", "TensorStorageMetadata", "TensorProperties",
        "ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    "filesystem": ("_StorageInfo",),
}  # fmt: skip
"""The classes that PyTorch writes, by module."""
_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")
_DAMAGE = (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, LookupError, MemoryError,
           OverflowError, RecursionError)  # fmt: skip

ObjectPath = tuple[Any, ...]
"""Keys from the outermost container to a value: text in a dict, a number in a list."""


class _Record:
    """A stand-in for an object whose PyTorch class is not imported; see ``_record``."""

    args: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.values = state

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if self.args:
            return type(self), self.args
        fields = {name: value for name, value in self.__dict__.items() if name not in ("args", "values")}
        return copyreg.__newobj__, (type(self),), self.values or fields or None  # type: ignore[attr-defined] # no types


_classes: dict[tuple[str, str], type[_Record]] = {}


def _class(module: str, name: str) -> type[_Record]:
    if (module, name) not in _classes:
        _classes[module, name] = type(name, (_Record,), {"__module__": module, "__qualname__": name})
    return _classes[module, name]


def _record(name: str, *args: Any, module: str = "metadata", **fields: Any) -> Any:
    record = _class(f"{PACKAGE}.{module}", name)(*args)
    record.__dict__.update(fields)
    return record


class _Pickler(pickle._Pickler):
    """Pickles the classes of records by name; pickle's default would import them."""

    def save_global(self, obj: Any, name: Any = None) -> None:
        if not (isinstance(obj, type) and issubclass(obj, _Record)):
            super().save_global(obj, name)  # type: ignore[misc] # as below
            return
        own: Any = self  # typeshed lacks these members, as this class of pickle is not public
        own.save(obj.__module__)
        own.save(obj.__qualname__)
        own.write(pickle.STACK_GLOBAL)
        own.memoize(obj)


class _Unpickler(pickle.Unpickler):
    """Reads records only: whoever wrote the file chose the names in it, and PyTorch loads it without a check."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _format
        if name in RECORDS.get(module.removeprefix(f"{PACKAGE}."), ()) and module.startswith(f"{PACKAGE}."):
            return _class(module, name)
        if module.startswith("pathlib") and name in ("PosixPath", "WindowsPath"):
            return _class(module, name)
        if (module, name) in (("torch", "Size"), ("torch.serialization", "_get_layout")):
            return torch.Size if name == "Size" else torch.serialization._get_layout
        value = getattr(torch, name, None) if module == "torch" and "." not in name else None
        if not isinstance(value, torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name}"[:100])
        return value


def _format(owner: Any, name: str) -> Any:
    """Return a record for a memory format, a member of an enum, which Python 3.11.2 pickles by its name."""
    if not (isinstance(owner, type) and issubclass(owner, _Record)) or name not in _FORMATS:
        raise pickle.UnpicklingError("builtins.getattr")
    return owner(name)


def flatten(value: Any, path: ObjectPath = ()) -> Iterator[tuple[ObjectPath, Any]]:
    """Yield the values of a tree of dicts and lists; a list without tensors, dicts or such lists is one value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, (*path, str(key)))
    elif isinstance(value, list) and _is_tree(value):
        for index, item in enumerate(value):
            yield from flatten(item, (*path, index))
    else:
        yield path, value


def _is_tree(value: list[Any]) -> bool:
    return any(
        isinstance(item, (torch.Tensor, Mapping)) or (isinstance(item, list) and _is_tree(item)) for item in value
    )


def flat_name(path: ObjectPath) -> str:
    """Return the name of the value in a checkpoint."""
    return ".".join(map(str, path))


def put(tree: Any, path: ObjectPath, value: Any) -> None:
    """Put a value into a tree, creating the dicts and lists on its path."""
    for key, following in zip(path, (*path[1:], None), strict=True):
        if isinstance(tree, list):
            tree.extend([None] * (key + 1 - len(tree)))
            is_missing = tree[key] is None
        else:
            is_missing = key not in tree
        if following is None:
            tree[key] = value
            return
        if is_missing:
            tree[key] = [] if isinstance(following, int) else {}
        tree = tree[key]


def share_out(holdings: list[dict[str, int]]) -> list[set[str]]:
    """Assign each value to one of the ranks that hold it, so that all ranks write about the same number of bytes.

    Args:
        holdings: For each rank, the sizes in bytes of its values by name.
    """
    holders: dict[str, list[int]] = {}
    for rank, holding in enumerate(holdings):
        for name in holding:
            holders.setdefault(name, []).append(rank)
    shares: list[set[str]] = [set() for _ in holdings]
    sizes = [0] * len(holdings)
    for name, ranks in holders.items():
        chosen = min(ranks, key=lambda rank: sizes[rank])
        shares[chosen].add(name)
        sizes[chosen] += holdings[chosen][name]
    return shares


def num_bytes(value: Any) -> int:
    """Return the bytes of a tensor; 1 for anything else, which is small."""
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 1


def write(directory: Path, rank: int, values: Iterable[tuple[ObjectPath, Any]]) -> list[Any]:
    """Write values into the file of a rank and return the entries for ``write_metadata``, as plain JSON."""
    entries: list[Any] = []
    name = f"__{rank}_0.distcp"
    with (directory / name).open("wb") as file:
        for path, value in values:
            begin, tensor = file.tell(), None
            if isinstance(value, torch.Tensor):
                value = value.detach().cpu()
                if value.layout == torch.strided and value.untyped_storage().nbytes() != num_bytes(value):
                    value = value.clone()  # otherwise the whole storage that it is a view of is written
                tensor = [str(value.dtype).removeprefix("torch."), list(value.size())]
            torch.save(value, file)
            entries.append([path, name, begin, file.tell() - begin, tensor])
    return entries


def write_metadata(directory: Path, entries: Iterable[list[Any]]) -> None:
    """Write the metadata file, which locates each value, from the entries of all ranks."""
    values: dict[str, Any] = {}
    paths: dict[str, ObjectPath] = {}
    places: dict[Any, Any] = {}
    for path, file, offset, length, tensor in entries:
        name = flat_name(path)
        index = _record("MetadataIndex", fqn=name, index=None)
        values[name] = _record("BytesStorageMetadata")
        if tensor is not None:
            dtype, size = getattr(torch, tensor[0]), torch.Size(tensor[1])
            begin = torch.Size([0] * len(size))
            index = _record("MetadataIndex", fqn=name, index=0, offset=begin)
            properties = _record("TensorProperties")
            contiguous = _record("_MEM_FORMAT_ENCODING", 0)
            properties.__setstate__((dtype, torch.strided, False, contiguous, False))
            chunk = _record("ChunkStorageMetadata", offsets=begin, sizes=size)
            values[name] = _record("TensorStorageMetadata", properties=properties, size=size, chunks=[chunk])
        paths[name] = tuple(path)
        places[index] = _record("_StorageInfo", module="filesystem", relative_path=file, offset=offset, length=length)
    metadata = _record(
        "Metadata",
        state_dict_metadata=values,
        planner_data=paths,
        storage_data=places,
        storage_meta=_record("StorageMeta", checkpoint_id=None, save_id=None, load_id=None, modules=[]),
        version=VERSION,
    )
    with (directory / METADATA).open("wb") as stream:
        _Pickler(stream, 4).dump(metadata)


class CheckpointReader:
    """Reads the values of a checkpoint, each joined from its shards.

    Attributes:
        paths: The path of each value by its flat name.
    """

    def __init__(self, directory: Path, *, trust: bool = False) -> None:
        """Read the metadata.

        Args:
            trust: Load values that are no tensors whatever they run.

        Raises:
            CheckpointMismatch: The metadata is not what PyTorch or ``write_metadata`` writes.
        """
        self._directory = directory
        self._trust = trust
        try:
            with (directory / METADATA).open("rb") as stream:
                metadata: Any = _Unpickler(stream).load()
            self.paths: dict[str, ObjectPath] = {str(name): tuple(path) for name, path in metadata.planner_data.items()}
            self._values: dict[str, Any] = dict(metadata.state_dict_metadata)
            self._places = {
                (index.fqn, None if (offset := getattr(index, "offset", None)) is None else tuple(offset)): place
                for index, place in metadata.storage_data.items()
            }
        except _DAMAGE as error:
            raise CheckpointMismatch(
                f"its {METADATA} holds what PyTorch's checkpoints do not: {str(error)[:200] or type(error).__name__}"
            ) from error

    def size(self, name: str) -> tuple[int, ...] | None:
        """Return the size of a tensor; None for anything else."""
        size = getattr(self._values[name], "size", None)
        return None if size is None else tuple(size)

    def expect(self, path: ObjectPath, value: Any) -> None:
        """Refuse a checkpoint whose value at this path cannot replace the given one.

        Raises:
            CheckpointMismatch: The checkpoint has no such value, or one of another size.
        """
        name = flat_name(path)
        shown = name.removeprefix("modules._")
        if name not in self._values:
            raise CheckpointMismatch(f"it holds nothing for {shown}, which the program has")
        size = tuple(value.size()) if isinstance(value, torch.Tensor) else None
        if size != self.size(name):
            raise CheckpointMismatch(f"{shown} has the size {self.size(name)} there and {size} in the program")

    def read(self, name: str) -> Any:
        """Return one value; tensors are in main memory."""
        value = self._values[name]
        if self.size(name) is None:
            return self._load(self._places[name, None], is_tensor=False)
        whole: torch.Tensor | None = None
        for chunk in value.chunks:
            part: torch.Tensor = self._load(self._places[name, tuple(chunk.offsets)], is_tensor=True)
            if len(value.chunks) == 1:
                return part
            if whole is None:
                whole = torch.empty(value.size, dtype=part.dtype)
            ends = zip(chunk.offsets, chunk.sizes, strict=True)
            whole[tuple(slice(begin, begin + length) for begin, length in ends)] = part
        return whole

    def _load(self, place: Any, *, is_tensor: bool) -> Any:
        with below(self._directory, place.relative_path).open("rb") as file:
            file.seek(place.offset)
            data = file.read(place.length)
        if is_tensor:
            return load_values(data, FILES, map_location="cpu")
        return load_values(data, FILES, trust=self._trust)
