"""The arguments by which the ranks of a run meet in XGBoost; imports nothing of it."""

from fairlead.runtime.frameworks.boosting import communicator_args

__all__ = ["communicator_args"]
