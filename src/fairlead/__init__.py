"""Fairlead takes machine-learning work from a laptop to Kubernetes and keeps it running true.

Importing this package costs nothing: each name is loaded at its first use.
"""

from __future__ import annotations

import sys
from importlib import import_module

# Type checkers take it for true by its name; `typing` itself would double what this import costs.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from fairlead import errors as errors
    from fairlead.api import RunHandle as RunHandle
    from fairlead.api import Training as Training
    from fairlead.finding import find as find
    from fairlead.pipelines import Pipeline as Pipeline
    from fairlead.pipelines import PipelineHandle as PipelineHandle
    from fairlead.runtime.parallelism.plan import ParallelPlan as ParallelPlan
    from fairlead.runtime.session import Stopped as Stopped
    from fairlead.runtime.session import run as run
    from fairlead.runtime.steps import step as step
    from fairlead.search import Search as Search
    from fairlead.sweeps import Sweep as Sweep
    from fairlead.sweeps import SweepHandle as SweepHandle

__version__ = "0.1.0"

OLDEST = (3, 11)
"""The Python that programs need for `run`; ranks start in older ones too."""

_HOMES = {
    "ParallelPlan": "fairlead.runtime.parallelism.plan",
    "Pipeline": "fairlead.pipelines",
    "PipelineHandle": "fairlead.pipelines",
    "RunHandle": "fairlead.api",
    "Search": "fairlead.search",
    "Sweep": "fairlead.sweeps",
    "SweepHandle": "fairlead.sweeps",
    "Training": "fairlead.api",
    "find": "fairlead.finding",
    "run": "fairlead.runtime.session",
    "step": "fairlead.runtime.steps",
    "Stopped": "fairlead.runtime.session",
}

__all__ = [
    "ParallelPlan",
    "Pipeline",
    "PipelineHandle",
    "RunHandle",
    "Search",
    "Stopped",
    "Sweep",
    "SweepHandle",
    "Training",
    "__version__",
    "errors",
    "find",
    "run",
    "step",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("fairlead.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
    if home == "fairlead.runtime.session" and sys.version_info < OLDEST:
        # Only a pod's interpreter comes here: no older one could have installed the package.
        ours, theirs = ".".join(map(str, OLDEST)), ".".join(map(str, sys.version_info[:3]))
        raise ImportError(
            f"fairlead.{name} needs Python {ours} or newer, and this is {theirs}; use an image that has one"
        )
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
