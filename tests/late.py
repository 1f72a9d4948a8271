"""Modules that cost seconds to import: a test brings them in, not the looking for tests, which each worker does."""

import importlib
import importlib.util
from typing import Any

import pytest

IMPORTED = pytest.StashKey[frozenset[str]]()
"""The modules that were there once the tests had been found."""


class Late:
    """A module that is imported at the first use of something in it.

    Names like ``_mock_name`` are what pytest asks of everything that it finds; they are no use of it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def torch_or_skip() -> Any:
    """PyTorch, imported late; the whole file is skipped where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; pip install 'fairlead[torch]'", allow_module_level=True)
    return Late("torch")
