"""The ways in which one GPU can serve several runs."""

from enum import StrEnum


class Sharing(StrEnum):
    """The ways in which a part of a GPU is kept apart from the others."""

    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class Handing(StrEnum):
    """The ways in which GPUs that are not partitioned are handed out."""

    WHOLE = "whole"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
