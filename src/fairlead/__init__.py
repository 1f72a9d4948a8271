"""Fairlead takes machine-learning work from a laptop to Kubernetes and keeps it running true.

Importing this package costs nothing: each name is loaded at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.api import Training as Training
    from fairlead.runtime.session import Stopped as Stopped
    from fairlead.runtime.session import run as run

__version__ = "0.1.0"

_HOMES = {
    "Training": "fairlead.api",
    "run": "fairlead.runtime.session",
    "Stopped": "fairlead.runtime.session",
}

__all__ = ["Stopped", "Training", "__version__", "run"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
