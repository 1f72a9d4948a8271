"""References from a spec to secrets, which are in no spec: by name, as variables or as files. See decision 251."""

import re
from collections.abc import Iterable, Mapping

from fairlead.frozen import dataclass
from fairlead.specs.constraints import quote
from fairlead.specs.field_types import ListField, Single, Tag, pattern
from fairlead.specs.overlay import SET_BY_FAIRLEAD, SET_BY_US

SECRETS_MOST = 8
SECRET_NAME = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
"""Names of Secrets as an API server allows them (RFC 1123); no name leads out of a directory."""
ENTRY_NAME = r"(?!\.\.)[-._A-Za-z0-9]{1,253}"
"""Keys of Secrets, as an API server allows them."""
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,255}"
_FORM = re.compile(rf"(?:(?P<variable>{_VARIABLE})=)?(?P<name>{SECRET_NAME})(?:/(?P<entry>{ENTRY_NAME}))?")
FORMS = "give NAME, or VARIABLE=NAME/ENTRY for the path of a file; its values are set with `fairlead secrets set NAME`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretReference:
    """A secret of a run.

    Attributes:
        name: Name of the secret.
        variable: Variable with the path of a file, or of the directory of all entries; None for a variable per entry.
        entry: The entry that is that file; None for the directory.
    """

    name: str
    variable: str | None = None
    entry: str | None = None

    @property
    def text(self) -> str:
        """Return the reference as it is written in a spec."""
        below = "" if self.entry is None else f"/{self.entry}"
        return self.name if self.variable is None else f"{self.variable}={self.name}{below}"


def parse_secret(text: str) -> SecretReference:
    """Parse NAME, VARIABLE=NAME or VARIABLE=NAME/ENTRY.

    Raises:
        ValueError: It is none of them; the message has no part of the text, which may be a value by mistake.
    """
    match = _FORM.fullmatch(text)
    if match is None or (match["entry"] is not None and match["variable"] is None):
        raise ValueError(f"is no reference to a secret; {FORMS}")
    return SecretReference(name=match["name"], variable=match["variable"], entry=match["entry"])


SECRET = Single(
    what="a secret",
    tags=frozenset({Tag.TEXT}),
    parse=parse_secret,
    render=lambda reference: reference.text,
    schema=pattern(rf"{SECRET_NAME}|{_VARIABLE}={SECRET_NAME}(?:/[-._A-Za-z0-9]{{1,253}})?"),
)
SECRETS = ListField(item=SECRET, most=SECRETS_MOST)


def as_variables(secrets: Iterable[SecretReference]) -> tuple[str, ...]:
    """Return the names of the secrets of which each entry is a variable."""
    return tuple(reference.name for reference in secrets if reference.variable is None)


def as_files(secrets: Iterable[SecretReference]) -> tuple[SecretReference, ...]:
    """Return the references that are paths of files."""
    return tuple(reference for reference in secrets if reference.variable is not None)


def secrets_problems(secrets: tuple[SecretReference, ...], env: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yield the problems between a spec's secrets, and between them and its variables."""
    if len(secrets) > SECRETS_MOST:
        yield "secrets", f"{len(secrets)} secrets; give at most {SECRETS_MOST}, and join those that belong together"
    seen: set[str] = set()
    for reference in secrets:
        subject = reference.name if reference.variable is None else reference.variable
        key = f"{subject}=" if reference.variable is not None else subject
        if key in seen:
            yield "secrets", f"{quote(subject)} is there twice; remove one"
        seen.add(key)
        if reference.variable is not None and reference.variable in env:
            yield "secrets", f"{quote(reference.variable)} is in `env` too; remove one of them"
        if reference.variable is not None and SET_BY_FAIRLEAD.fullmatch(reference.variable) is not None:
            yield "secrets", f"{quote(reference.variable)}{SET_BY_US}"
