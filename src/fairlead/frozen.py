"""``dataclass`` of the standard library, with methods of frozen classes that are made when they are first needed.

The standard one writes and compiles six methods for a class, which takes it half a millisecond. A command loads 130
classes, makes objects of a third of them and compares hardly any, so that this was a third of what it did until it
submitted. Here frozen classes share all methods that need no text, and each gets its constructor with its first object.

Fields, defaults, errors, equality and pickles are those of the standard library, which makes all other dataclasses.

See decision 107.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

Record = TypeVar("Record")

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # which type checkers know
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Make a class a dataclass; options are those of the standard library."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        if {**options, "kw_only": True} == {"frozen": True, "slots": True, "kw_only": True}:
            return _frozen(cls, is_kw_only=options.get("kw_only", False))
        return dataclasses.dataclass(cls, **options)


_assign = object.__setattr__


class _ByFactory:
    """Stands for the value of a field that its factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_BY_FACTORY = _ByFactory()


class _Signature:
    """The signature that ``help`` and editors show: the one of the constructor that objects will get."""

    def __get__(self, _: object, cls: Any) -> inspect.Signature:
        of = getattr(cls.__init__, "of", None)
        whole = inspect.signature(cls.__init__ if of is None else _write_init(of))
        parameters = [
            parameter.replace(annotation=_bare(parameter.annotation)) for parameter in whole.parameters.values()
        ]
        return whole.replace(parameters=parameters[1:])


def _bare(annotation: Any) -> Any:
    """Return a type without the metadata of ``Annotated``, which would fill pages."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _frozen(cls: type, *, is_kw_only: bool) -> Any:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True, kw_only=is_kw_only)(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {
        "__init__": _first_init(made),
        "__signature__": _Signature(),
        "__repr__": _represent,
        "__eq__": _equality(_values_of([field.name for field in fields if field.compare])),
        "__hash__": _hashing(
            _values_of([field.name for field in fields if (field.compare if field.hash is None else field.hash)])
        ),
        "__getstate__": _state,
        "__setstate__": _restore,
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
    }
    for name, method in methods.items():
        # Python gives a class that defines its equality alone a hash of None.
        if vars(made).get(name) is None:
            setattr(made, name, method)
    return made


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads the values of these fields as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _equality(values_of: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def equals(self: Any, other: Any) -> Any:
        return values_of(self) == values_of(other) if other.__class__ is self.__class__ else NotImplemented

    return equals


def _hashing(values_of: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def hashed(self: Any) -> int:
        return hash(values_of(self))

    return hashed


@recursive_repr()
def _represent(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=False):
        _assign(self, field.name, value)


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _first_init(cls: Any) -> Callable[..., None]:
    """Return a constructor that has the one of the class written, which takes its place."""

    def init(self: Any, /, *values: Any, **named: Any) -> None:
        cls.__init__ = _write_init(cls)
        cls.__init__(self, *values, **named)

    init.of = cls  # type: ignore[attr-defined]  # a function takes any attribute
    return init


def _write_init(cls: Any) -> Callable[..., None]:
    """Write the constructor that the standard library would have written."""
    fields = dataclasses.fields(cls)
    known: dict[str, Any] = {"_by_factory": _BY_FACTORY}
    positional, named, lines = ["self"], list[str](), list[str]()
    for field in fields:
        default, value = "", field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{field.name}"] = field.default_factory
            default = "=_by_factory"
            value = f"_make_{field.name}()" + (
                f" if {field.name} is _by_factory else {field.name}" if field.init else ""
            )
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{field.name}"] = field.default
            default = f"=_default_{field.name}"
            value = field.name if field.init else f"_default_{field.name}"
        elif not field.init:  # `__post_init__` gives it its value
            continue
        known[f"_set_{field.name}"] = _setter(cls, field.name)
        lines.append(f" _set_{field.name}(self, {value})")
        if field.init:
            (named if field.kw_only else positional).append(f"{field.name}{default}")
    lines.append(" self.__post_init__()" if hasattr(cls, "__post_init__") else " return")
    head = f"def __init__({', '.join([*positional, *['*'][: len(named)], *named])}):"
    exec("\n".join([head, *lines]), known)
    written: Callable[..., None] = known["__init__"]
    written.__qualname__, written.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    written.__annotations__ = {**{field.name: field.type for field in fields if field.init}, "return": None}
    return written


def _setter(cls: Any, name: str) -> Callable[[Any, Any], None]:
    """Return what sets a field of an object: its slot does so in half the time of ``object.__setattr__``."""
    setter: Callable[[Any, Any], None] = getattr(cls, name).__set__
    return setter


_copiers: dict[type, Callable[[Any, dict[str, Any]], Any]] = {}


def replace(record: Record, /, **changes: Any) -> Record:
    """Do the same as ``dataclasses.replace``, in a third of the time for frozen classes, where passes make many."""
    copier = _copiers.get(record.__class__)
    if copier is None:
        copier = _copiers[record.__class__] = _write_copier(record.__class__)
    copied: Record = copier(record, changes)
    return copied


def _write_copier(cls: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """Write a function that copies an object with other values of some fields."""
    fields = dataclasses.fields(cls)
    is_plain = all(field.init for field in fields) and not hasattr(cls, "__post_init__")
    if vars(cls).get("__setattr__") is not _refuse_assignment or not is_plain:
        return lambda record, changes: dataclasses.replace(record, **changes)
    setters = {field.name: _setter(cls, field.name) for field in fields}
    known: dict[str, Any] = {f"_set_{name}": setter for name, setter in setters.items()}
    known |= {"_setters": setters, "_new": object.__new__, "_cls": cls}
    known["_replace"] = dataclasses.replace
    lines = [
        "def copy(record, changes):",
        " copied = _new(_cls)",
        *(f" _set_{name}(copied, record.{name})" for name in setters),
        " for name, value in changes.items():",
        "  if name not in _setters:",
        "   return _replace(record, **changes)  # which refuses it",
        "  _setters[name](copied, value)",
        " return copied",
    ]
    exec("\n".join(lines), known)
    written: Callable[[Any, dict[str, Any]], Any] = known["copy"]
    return written
