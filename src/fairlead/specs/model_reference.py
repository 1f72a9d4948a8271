"""Parses references to models: ``NAME@production``, ``NAME@best``, ``NAME@3`` and ``run://NAME@best``."""

from fairlead.frozen import dataclass
from fairlead.specs.constraints import NAME, Text, quote

RUN_SCHEME = "run://"
BEST, LATEST = "best", "latest"
STAGE = Text(
    max_length=40,
    pattern=r"[a-z](?:[-a-z0-9]*[a-z0-9])?",
    what="a stage; use lower-case letters, digits and dashes, starting with a letter, such as `production`",
)
FORMS = (
    f"NAME@production or another stage, NAME@{BEST}, NAME@{LATEST}, NAME@3, {RUN_SCHEME}NAME, {RUN_SCHEME}NAME@{BEST}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """A reference to a version of a pushed model, or to a run's checkpoint.

    Attributes:
        which: ``best``, ``latest``, a number, or for a model a stage; the number is a version, or for a run a step.
        is_run: It refers to a run's checkpoint rather than a pushed version.
    """

    name: str
    which: str
    is_run: bool = False

    def __str__(self) -> str:
        return f"{RUN_SCHEME if self.is_run else ''}{self.name}@{self.which}"

    @property
    def number(self) -> int | None:
        """Return the version or the step; None for another word."""
        return int(self.which) if self.which.isascii() and self.which.isdigit() else None


def read_reference(text: str) -> ModelReference | None:
    """Parse a reference; return None for another form, such as a path or a URL."""
    is_run = text.startswith(RUN_SCHEME)
    name, at, which = text.removeprefix(RUN_SCHEME).partition("@")
    if is_run and not at:
        which = LATEST
    if NAME.problem(name) is not None or (not is_run and not at):
        return None
    if not (which.isascii() and which.isdigit()) and STAGE.problem(which) is not None:
        return None
    if is_run and not which.isdigit() and which not in (BEST, LATEST):
        return None
    return ModelReference(name=name, which=which, is_run=is_run)


def stage_problem(stage: str) -> str | None:
    """Return why a word is not a valid stage; None if it is valid."""
    if stage in (BEST, LATEST):
        return f"{quote(stage)} is not a stage: which version is {stage} follows from the versions; choose another word"
    return STAGE.problem(stage)
