"""A callback that makes Hugging Face's Trainer part of a run; imports the framework, and nothing else imports this."""

from fairlead.runtime.frameworks.huggingface import FairleadCallback

__all__ = ["FairleadCallback"]
