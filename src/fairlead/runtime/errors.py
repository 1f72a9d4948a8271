"""Errors that the in-pod library raises on purpose.

RuntimeFault
    Misuse              the program calls the library in a way that cannot work
    AgreementFailed     the ranks cannot reach each other, or are not at the same step
    MissingExtra        a package that this feature needs is not installed
    StoreUnavailable    the checkpoint storage cannot be reached; no data is known to be lost
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
    """The checkpoint storage cannot be reached."""


class LossNotFinite(RuntimeFault):
    """The loss of a step is NaN or infinite."""


class ReformFailed(RuntimeFault):
    """The remaining ranks of an elastic run did not form a new group."""


class CheckpointMismatch(RuntimeFault):
    """An undamaged checkpoint does not belong to this program."""
