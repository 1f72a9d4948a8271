"""Errors that the in-pod library raises on purpose.

RuntimeFault
    Misuse              the program calls the library in a way that cannot work
    AgreementFailed     the ranks cannot reach each other, or are not at the same step
    MissingExtra        a package that this feature needs is not installed
    StoreUnavailable    a store of checkpoints or data cannot be reached; nothing is known to be lost
    DataChanged         an object of a data set is not the one of its version any more
    LossNotFinite       the loss of a step is NaN or infinite
    ReformFailed        the remaining ranks of an elastic run did not form a new group
    CheckpointMismatch  an undamaged checkpoint does not belong to this program
"""

from fairlead.errors import RuntimeFault


class Misuse(RuntimeFault):
    """The program calls the library in a way that cannot work."""


class AgreementFailed(RuntimeFault):
    """The ranks cannot reach each other, or are not at the same step."""


class MissingExtra(RuntimeFault):
    """A package that this feature needs is not installed."""


class StoreUnavailable(RuntimeFault):
    """A store of checkpoints or data cannot be reached, or refuses."""


class DataChanged(RuntimeFault):
    """An object of a data set is not the one of its version any more."""

    def __init__(self, url: str, key: str, change: str) -> None:
        super().__init__(
            f"data: {key} of {url} {change} since its version was recorded; start a run with the version of today, or "
            "put the object back"
        )


class LossNotFinite(RuntimeFault):
    """The loss of a step is NaN or infinite."""


class ReformFailed(RuntimeFault):
    """The remaining ranks of an elastic run did not form a new group."""


class CheckpointMismatch(RuntimeFault):
    """An undamaged checkpoint does not belong to this program."""
