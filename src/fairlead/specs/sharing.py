"""The ways in which one GPU can serve several runs."""

from enum import StrEnum


class Sharing(StrEnum):
    """How a part of a GPU is kept apart from the others."""

    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class Handing(StrEnum):
    """How GPUs that are not partitioned are handed out."""

    WHOLE = "whole"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
