"""Methods of sharing a GPU among runs."""

from enum import StrEnum


class Sharing(StrEnum):
    """The methods of isolating a part of a GPU."""

    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "time-slicing"


class Handing(StrEnum):
    """The methods of allocating GPUs that are not partitioned."""

    WHOLE = "whole"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
