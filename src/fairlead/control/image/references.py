"""Parses names of images: registry, repository, and a tag or a digest, as for `docker pull`."""

import re
from dataclasses import replace

from fairlead.errors import InvalidArgument
from fairlead.frozen import dataclass

DOCKER_HUB = "docker.io"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_REGISTRY = re.compile(r"(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_LOOPBACK = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A name of an image.

    Attributes:
        registry: Host, with the port unless it is 443.
        is_plain: Without TLS: a registry on loopback, or one given with ``http://``.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None
    is_plain: bool = False

    @property
    def version(self) -> str:
        """Return the digest, the tag, or the default tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        end = f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"
        return f"{self.registry}/{self.repository}{end}"

    def at(self, digest: str) -> "Reference":
        """Return the same image by digest."""
        return replace(self, tag=None, digest=digest)


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 digest."""
    return _DIGEST.fullmatch(text) is not None


def read_reference(text: str, *, tag: str | None = "latest") -> Reference:
    """Parse a name as users write it; without a registry it refers to Docker Hub.

    Args:
        tag: Default for a text without tag and digest; None for none.

    Raises:
        InvalidArgument: The text is not a name of an image.
    """
    rest, is_plain = text, False
    for scheme in ("http://", "https://"):
        if rest.startswith(scheme):
            rest, is_plain = rest.removeprefix(scheme), scheme == "http://"
    rest, at, digest = rest.partition("@")
    head, slash, path = rest.partition("/")
    if not slash or not ("." in head or ":" in head or head == "localhost"):
        head, path = DOCKER_HUB, rest if slash else f"library/{rest}"
    path, colon, own_tag = path.rpartition(":") if ":" in path else (path, "", "")
    reference = Reference(
        registry=head,
        repository=path,
        tag=own_tag if colon else None if at else tag,
        digest=digest if at else None,
        is_plain=is_plain or _LOOPBACK.fullmatch(head) is not None,
    )
    for part, form, value in (
        ("registry", _REGISTRY, reference.registry),
        ("name", _REPOSITORY, reference.repository),
        ("tag", _TAG, reference.tag),
        ("digest", _DIGEST, reference.digest),
    ):
        if value is not None and not form.fullmatch(value):
            raise InvalidArgument(
                f"{text!r} is no image: {value!r} is no {part}. Give REGISTRY/NAME[:TAG] in small letters, as in "
                "ghcr.io/acme/fairlead:1, or NAME@sha256:DIGEST."
            )
    return reference
