"""The parameters by which the ranks of a run meet in LightGBM; imports nothing of it."""

from fairlead.runtime.frameworks.boosting import network_params

__all__ = ["network_params"]
