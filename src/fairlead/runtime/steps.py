"""Pipeline steps as Python functions: ``python -m fairlead.runtime.steps FILE FUNCTION [INPUT ...]``.

A function receives the results of the steps that its parameters name, and its return value is the output ``result``.
That is stored as JSON if JSON restores the same value, otherwise as a pickle; a path is stored as a copy of its file or
directory. A pickle is read from the pipeline's own store, after it was compared with the hash of what a step returned.
"""

import json
import os
import pickle
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any, Callable, Optional, TypeVar, Union, overload

RESULT = "result"
KEYS = "fairlead_step"
ITEM = "item"
_PICKLE = b"fairlead pickle\n"

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def step(function: Function) -> Function: ...


@overload
def step(**keys: Any) -> Callable[[Function], Function]: ...


def step(function: Optional[Function] = None, **keys: Any) -> Union[Function, Callable[[Function], Function]]:
    """Mark a function as a step of a pipeline; it can still be called as usual.

    Args:
        **keys: Keys of a step in a spec file, such as ``retry=2`` or ``gate="result > 0.9"``. ``each_of`` may be the
        step that returns the list; ``training`` has the keys of a separate run, such as ``{"nodes": 2}``.
    """

    def mark(marked: Function) -> Function:
        setattr(marked, KEYS, keys)
        return marked

    return mark if function is None else mark(function)


def dump(value: Any, place: Path) -> None:
    """Write a value in a form that ``load`` reads."""
    if isinstance(value, os.PathLike):
        place.mkdir()
        source = Path(value)
        if source.is_dir():
            shutil.copytree(source, place / source.name)
        else:
            shutil.copy2(source, place / source.name)
        return
    try:
        text = json.dumps(value, sort_keys=True)
        is_same = json.loads(text) == value
    except (TypeError, ValueError, RecursionError):
        is_same = False
    place.write_bytes(text.encode() if is_same is True else _PICKLE + pickle.dumps(value))


def load(place: Path) -> Any:
    """Read a value that ``dump`` wrote."""
    if place.is_dir():
        (only,) = place.iterdir()
        return only
    content = place.read_bytes()
    return pickle.loads(content[len(_PICKLE) :]) if content.startswith(_PICKLE) else json.loads(content)


def main(words: "list[str]") -> None:
    """Call a function of a file.

    Args:
        words: File, function, and for each input its source: ``name`` for a step's result, ``name[]`` for the results
        of all its items, ``item=name`` for this item of a step's list, ``item`` for this item as written in the spec.
    """
    file, name, *inputs = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    function = runpy.run_path(file, run_name=KEYS)[name]
    value = function(**dict(map(_read, inputs)))
    # In a run with several ranks all of them execute this; rank 0 writes the result.
    if os.environ.get("RANK", "0") == "0":
        place = Path(os.environ["FAIRLEAD_OUTPUT_RESULT"])
        if os.path.lexists(place):  # an earlier attempt was killed after it had written the result
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        dump(value, place)


def _read(word: str) -> "tuple[str, Any]":
    parameter, equals, source = word.partition("=")
    if equals:
        return parameter, load(_place(source))[int(os.environ["FAIRLEAD_ITEM_INDEX"])]
    if word == ITEM:
        return ITEM, os.environ["FAIRLEAD_ITEM"]
    if word.endswith("[]"):
        parts = sorted(_place(word[:-2]).iterdir(), key=lambda part: int(part.name))
        return word[:-2], [load(part) for part in parts]
    return word, load(_place(word))


def _place(source: str) -> Path:
    return Path(os.environ[f"FAIRLEAD_INPUT_{source.upper()}_RESULT"])


if __name__ == "__main__":
    main(sys.argv[1:])
