"""A callback that makes Lightning's Trainer part of a run; imports the framework, and nothing else imports this."""

from fairlead.runtime.frameworks.lightning import FairleadCallback

__all__ = ["FairleadCallback"]
