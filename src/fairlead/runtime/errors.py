"""Every error that the in-pod library raises on purpose.

RuntimeFault
  Misuse              the program calls the library in a way that cannot work
  AgreementFailed     the ranks could not reach each other, or do not agree on what they are doing
  MissingExtra        a package that this feature needs is not installed
  StoreUnavailable    the place of the checkpoints cannot be reached; nothing is known to be lost
  LossNotFinite       the loss of a step is NaN or infinite
  ReformFailed        ranks that were to go on without one that is gone did not come together
  CheckpointMismatch  a sound checkpoint does not belong to this program
"""

from fairlead.errors import RuntimeFault


class Misuse(RuntimeFault):
    """The program calls the library in a way that cannot work."""


class AgreementFailed(RuntimeFault):
    """The ranks could not agree."""


class MissingExtra(RuntimeFault):
    """A package that this feature needs is not installed."""


class StoreUnavailable(RuntimeFault):
    """The place of the checkpoints cannot be reached."""


class LossNotFinite(RuntimeFault):
    """The loss of a step is NaN or infinite."""


class ReformFailed(RuntimeFault):
    """Ranks that were to go on without one that is gone did not come together."""


class CheckpointMismatch(RuntimeFault):
    """A sound checkpoint does not belong to this program."""
