"""Loads pickles of checkpoints without running what their writer chose.

A pickle may name any function of any module and have it called. Whoever may write to a bucket could so run programs in
every run that resumes from it; checksums do not help, since the manifest lies beside. So pickles may name values of the
standard library, NumPy and PyTorch alone, unless the spec trusts their writers by `checkpoint: {trust: true}`.

See decision 157.
"""

import importlib
import importlib.util
import io
import pickle
import re
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fairlead.runtime.errors import CheckpointMismatch

MOST_CHECKED_BYTES = 256 << 20
TRUST = "`checkpoint: {trust: true}` in the spec"
# Callables and classes implemented in C: a pickle can neither change them nor reach further from them.
_PLAIN = {
    "builtins": (
        "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set", "slice",
        "str", "tuple",
    ),
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
}  # fmt: skip
_ARRAY_MODULES = {"multiarray": ("scalar", "_reconstruct"), "numeric": ("_frombuffer",)}
_REBUILT = ("_rebuild_tensor_v2", "_rebuild_parameter")
_DAMAGE = (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, LookupError, ImportError,
           MemoryError, OverflowError, RecursionError)  # fmt: skip


class _Refused(pickle.UnpicklingError):
    """A pickle names something that is not allowed; the argument is its name."""


def loads(data: bytes, what: str, *, trust: bool = False, also: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Load a pickle.

    Args:
        what: Name of its file, for the message.
        trust: Allow everything; the writer is trusted.
        also: Further classes that are allowed, by their full names.

    Raises:
        CheckpointMismatch: It names anything that is not allowed, or is no pickle.
    """
    if trust:
        return pickle.loads(data)
    try:
        return _Unpickler(io.BytesIO(data), also).load()
    except _Refused as error:
        raise refused(what, str(error)) from error
    except _DAMAGE as error:
        raise CheckpointMismatch(f"{what} cannot be read: {error}") from error


def load_values(data: bytes, what: str, *, trust: bool = False, map_location: str | None = None) -> Any:
    """Load what ``torch.save`` wrote.

    Raises:
        CheckpointMismatch: It names anything that is not allowed, or cannot be read.
    """
    import torch

    if trust:
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=False)
    try:
        return torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError:
        pass  # tried again with more values allowed, whose table costs time
    try:
        with torch.serialization.safe_globals([(value, name) for name, value in _values().items()]):
            return torch.load(io.BytesIO(data), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise refused(what, "a value of the program" if name is None else name[1]) from error


def refused(what: str, name: str) -> CheckpointMismatch:
    """Return the error for a pickle that names something that is not allowed."""
    return CheckpointMismatch(
        f"{what} holds {name[:100]!r}, and loading that may run any program of whoever wrote it; if you trust "
        f"everybody who can write there, give {TRUST}"
    )


def check_saved(data: bytes) -> str | None:
    """Return the name of something in a pickle of this program's own that ``loads`` would refuse; None for nothing.

    A large one is not checked, as that needs its size in memory once more.
    """
    if len(data) > MOST_CHECKED_BYTES:
        return None
    try:
        _Unpickler(io.BytesIO(data), {}).load()
    except _Refused as error:
        return str(error)
    except _DAMAGE:
        return None
    return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, also: Mapping[str, type]) -> None:
        super().__init__(data)
        self._also = also

    def find_class(self, module: str, name: str) -> Any:
        value = self._also.get(f"{module}.{name}") or _value(module, name)
        if value is None:
            value = _torch_value(module, name)
        if value is None:
            raise _Refused(f"{module}.{name}")
        return value


def _value(module: str, name: str) -> Any:
    """Return an allowed value of the standard library or NumPy; None for any other."""
    if name in _PLAIN.get(module, ()):
        return getattr(importlib.import_module(module), name)
    if (module, name) == ("_codecs", "encode"):
        return _encode
    return _array_values().get(f"{module}.{name}") if module.startswith("numpy") else None


def _values() -> dict[str, Any]:
    """Return all allowed values of the standard library and NumPy by their full names."""
    plain = {f"{module}.{name}": _value(module, name) for module, names in _PLAIN.items() for name in names}
    return {**plain, "_codecs.encode": _encode, **_array_values()}


def _array_values() -> dict[str, Any]:
    """Return the values of NumPy that its arrays and scalars name; none where the program has not loaded it."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or _arrays:
        return _arrays
    # NumPy 2 renamed the package, and reads pickles of the other name.
    core = "numpy._core" if importlib.util.find_spec("numpy._core") is not None else "numpy.core"
    for module, names in _ARRAY_MODULES.items():
        values = importlib.import_module(f"{core}.{module}")
        for package in ("numpy.core", "numpy._core"):
            has = [name for name in names if hasattr(values, name)]
            _arrays.update({f"{package}.{module}.{name}": getattr(values, name) for name in has})
    _arrays.update({"numpy.ndarray": numpy.ndarray, "numpy.dtype": numpy.dtype})
    for kind in [*vars(numpy).values(), *vars(getattr(numpy, "dtypes", numpy)).values()]:
        if isinstance(kind, type) and issubclass(kind, numpy.dtype | numpy.generic):
            _arrays[f"{kind.__module__}.{kind.__name__}"] = kind
    return _arrays


_arrays: dict[str, Any] = {}


def _torch_value(module: str, name: str) -> Any:
    """Return a value of PyTorch that tensors in a pickle name; None for any other."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not module.startswith("torch"):
        return None
    if (module, name) == ("torch.storage", "_load_from_bytes"):
        return _storage
    if module == "torch._utils" and name in _REBUILT:
        return getattr(torch._utils, name)
    if (module, name) == ("torch.serialization", "_get_layout"):
        return torch.serialization._get_layout
    value = getattr(torch, name, None) if module == "torch" and "." not in name else None
    is_value = isinstance(value, torch.dtype | torch.layout) or value in (torch.Size, torch.device, torch.Tensor)
    return value if is_value or value is torch.nn.Parameter else None


def _storage(data: bytes) -> Any:
    """Load a storage as PyTorch does, which however allows everything."""
    import torch

    return torch.load(io.BytesIO(data), weights_only=True)


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """Return bytes as old protocols of pickle write them."""
    if encoding != "latin1":
        raise _Refused(f"_codecs.encode of {encoding[:20]}")
    return text.encode("latin1")
