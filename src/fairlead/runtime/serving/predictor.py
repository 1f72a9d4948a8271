"""A user's predictor: how it is found by ``module:Class``, its declarations, and how a batch is run.

    class Classifier:
        inputs = {"pixels": ("FP32", (-1, 28, 28))}     # optional: checked, and used to warm up
        outputs = {"scores": ("FP32", (-1, 10))}        # optional
            def load(self, model: str) -> None: ...         # optional: a directory or file, "" if there is none
        def warm_up(self) -> None: ...                  # optional: instead of batches of zeros
        def predict(self, inputs): ...                  # {name: array} in and out; the first axis is the batch
        def generate(self, prompt, *, max_tokens, temperature): ...     # yields pieces of text
        def chat_prompt(self, messages) -> str: ...     # optional: of [{"role": ..., "content": ...}]
        def count_tokens(self, text) -> int: ...        # optional: turns on `usage`

A predictor has ``predict``, ``generate`` or both. All methods are called in one thread, one at a time.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.runtime.serving.problems import BadRequest, PredictFailed
from fairlead.runtime.serving.tensors import DTYPES, MAX_RANK, Array, datatype_of

Arrays = dict[str, Array]

SAMPLING = ("top_p", "seed")
"""Optional arguments of ``generate``: a request may give those that it takes."""


@dataclass(frozen=True)
class TensorSpec:
    """A predictor's declaration of an input or output; -1 in the shape is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        """Return it in the form of the protocol's metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape fits."""
        return len(shape) == len(self.shape) and all(
            own in (-1, size)
            for own, size in zip(self.shape, shape)  # noqa: B905 (strict= needs Python 3.10)
        )


class Unusable(Exception):
    """The class cannot be served; the message has the reason and the remedy."""


class Predictor:
    """A user's predictor with its declarations.

    Attributes:
        inputs: Declared inputs by name; None if it declares none, so that all inputs are passed to it.
        outputs: Declared outputs by name; None if it declares none.
        sampling: Names in ``SAMPLING`` that its ``generate`` takes.
    """

    def __init__(self, instance: Any) -> None:
        """Read the declarations of an instance of the user's class.

        Raises:
            Unusable: It lacks a method, or a declaration is not a tensor's.
        """
        self._instance = instance
        self.name = type(instance).__name__
        self.predict_method = self._method("predict")
        self._generate = self._method("generate")
        self._chat_prompt = self._method("chat_prompt")
        self._count_tokens = self._method("count_tokens")
        if self.predict_method is None and self._generate is None:
            raise Unusable(f"{self.name} has neither predict() nor generate()")
        self.inputs = _specs(self.name, "inputs", getattr(instance, "inputs", None))
        self.outputs = _specs(self.name, "outputs", getattr(instance, "outputs", None))
        self.sampling: tuple[str, ...] = ()
        if self._generate is not None:
            self.sampling = _sampling(self.name, self._generate)

    @property
    def predicts(self) -> bool:
        return self.predict_method is not None

    @property
    def generates(self) -> bool:
        return self._generate is not None

    @property
    def counts_tokens(self) -> bool:
        return self._count_tokens is not None

    def load(self, model: str) -> None:
        """Load the model, if the class has a ``load`` method."""
        load = self._method("load")
        if load is not None:
            load(model)

    def warm_up(self, max_batch_size: int) -> Iterator[Callable[[], tuple[int, Any]]]:
        """Yield the calls that warm up; each returns the rows of its batch, 0 if it is not a batch, and the result.

        They are the class's own ``warm_up`` if it has one. Otherwise they are batches of zeros of its declared inputs,
        with one row and with ``max_batch_size`` rows, and one piece of text.
        """
        own = self._method("warm_up")
        if own is not None:
            yield lambda: (0, own())
            return
        if self.predicts and self.inputs:
            for rows in sorted({1, max_batch_size}):
                batch = {spec.name: _zeros(spec, rows) for spec in self.inputs.values()}
                for _ in range(3):  # the first call includes one-time costs
                    yield lambda batch=batch, rows=rows: (rows, self.predict(batch, rows))  # type: ignore[misc]
        if self.generates:
            yield lambda: (0, next(self.generate("Hello", max_tokens=1, temperature=0.0), ""))

    def predict(self, inputs: Arrays, rows: int) -> Arrays:
        """Run a batch and return its outputs.

        Raises:
            BadRequest: ``predict`` raised ValueError, so the inputs are at fault.
            PredictFailed: ``predict`` raised another error, or its result is not valid.
        """
        assert self.predict_method is not None
        try:
            outputs = self.predict_method(inputs)
        except ValueError as error:
            raise BadRequest(f"{self.name}.predict() refused the inputs: {error}") from error
        except Exception as error:
            raise PredictFailed(f"{self.name}.predict() raised {type(error).__name__}: {error}") from error
        return self._checked(outputs, rows)

    def generate(self, prompt: str, *, max_tokens: int, temperature: float, **sampling: Any) -> Iterator[str]:
        """Return an iterator over the pieces of text that follow a prompt."""
        assert self._generate is not None
        return iter(self._generate(prompt, max_tokens=max_tokens, temperature=temperature, **sampling))

    def chat_prompt(self, messages: list[dict[str, str]]) -> str:
        """Return the prompt of a conversation: the class's own, or one line for each message, then `assistant:`."""
        if self._chat_prompt is not None:
            return str(self._chat_prompt(messages))
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "".join(lines) + "assistant: "

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text. Only if ``counts_tokens``."""
        assert self._count_tokens is not None
        return int(self._count_tokens(text))

    def _method(self, name: str) -> Callable[..., Any] | None:
        method = getattr(self._instance, name, None)
        if method is not None and not callable(method):
            raise Unusable(f"{self.name}.{name} is {type(method).__name__}; make it a method")
        return method

    def _checked(self, outputs: Any, rows: int) -> Arrays:
        if not isinstance(outputs, Mapping) or not outputs:
            raise PredictFailed(
                f"{self.name}.predict() returned {type(outputs).__name__}; return a dict of arrays by their names"
            )
        arrays: Arrays = {}
        for name, value in outputs.items():
            try:
                array = np.asarray(value)
            except Exception as error:
                raise PredictFailed(f"output {name!r} of {self.name} is not an array: {error}") from error
            if array.ndim < 1 or array.shape[0] != rows:
                raise PredictFailed(
                    f"output {name!r} of {self.name} has the shape {list(array.shape)} for a batch of {rows}; "
                    "its first axis is to be the batch"
                )
            datatype_of(str(name), array)
            arrays[str(name)] = array
        if self.outputs is not None:
            for spec in self.outputs.values():
                if spec.name not in arrays:
                    raise PredictFailed(f"{self.name}.predict() returned no {spec.name!r}, which its outputs declare")
                if not spec.takes(arrays[spec.name].shape):
                    shape = list(arrays[spec.name].shape)
                    raise PredictFailed(f"output {spec.name!r} of {self.name} has the shape {shape}; not as declared")
                arrays[spec.name] = _as_declared(self.name, spec, arrays[spec.name])
        return arrays


def find_class(predictor: str, directory: str) -> type[Any]:
    """Import ``module:Class``, from the working directory first.

    Raises:
        Unusable: The module or the class does not exist.
        Exception: Any exception that the module raises when it is imported.
    """
    module_name, _, name = predictor.partition(":")
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise Unusable(
            f"there is no module {error.name!r} in {os.path.abspath(directory)} or among packages"
        ) from error
    candidate = getattr(module, name, None)
    if not inspect.isclass(candidate):
        near = [
            class_name
            for class_name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module_name
        ]
        raise Unusable(f"{module_name} has no class {name!r}; it has {', '.join(near) or 'none'}")
    return candidate


def _specs(owner: str, what: str, declared: Any) -> dict[str, TensorSpec] | None:
    if declared is None:
        return None
    if not isinstance(declared, Mapping) or not declared:
        raise Unusable(f'{owner}.{what} is {declared!r}; give {{"name": ("FP32", (-1, 4))}}')
    return {str(name): _spec(owner, what, str(name), value) for name, value in declared.items()}


def _spec(owner: str, what: str, name: str, value: Any) -> TensorSpec:
    where = f"{owner}.{what}[{name!r}]"
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[1], (tuple, list)):
        raise Unusable(f'{where} is {value!r}; give a datatype and a shape, such as ("FP32", (-1, 4))')
    datatype, shape = value
    if datatype not in DTYPES:
        raise Unusable(f"{where} has the datatype {datatype!r}; give one of {', '.join(DTYPES)}")
    sizes_fit = all(type(size) is int and (size == -1 or size > 0) for size in shape)
    if not sizes_fit or not 1 <= len(shape) <= MAX_RANK or shape[0] != -1:
        raise Unusable(f"{where} has the shape {shape!r}; give -1 for the batch first, then sizes, or -1 for any size")
    return TensorSpec(name, str(datatype), tuple(shape))


def _sampling(owner: str, generate: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(generate).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return SAMPLING
    for name in ("max_tokens", "temperature"):
        if name not in parameters:
            raise Unusable(
                f"{owner}.generate() takes no {name}; write generate(self, prompt, *, max_tokens, temperature)"
            )
    return tuple(name for name in SAMPLING if name in parameters)


def _zeros(spec: TensorSpec, rows: int) -> Array:
    shape = (rows, *(1 if size == -1 else size for size in spec.shape[1:]))
    if spec.datatype == "BYTES":
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, dtype=DTYPES[spec.datatype])


def _as_declared(owner: str, spec: TensorSpec, array: Array) -> Array:
    if spec.datatype == "BYTES":
        if array.dtype.kind not in "OSU":
            raise PredictFailed(f"output {spec.name!r} of {owner} is of {array.dtype} where BYTES is declared")
        return array
    wanted = np.dtype(DTYPES[spec.datatype])
    if not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise PredictFailed(f"output {spec.name!r} of {owner} is of {array.dtype} where {spec.datatype} is declared")
    return array.astype(wanted, copy=False)
