"""The registry to which images of environments are pushed, and the base image on which they are built.

``fairlead registry set`` writes them into the state directory of this user. The base is named by its digest, so that
the same lock gives the same image until another base is set.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairlead.control.image.references import Reference, read_reference
from fairlead.errors import ClusterError, InvalidArgument
from fairlead.frozen import dataclass
from fairlead.runtime.podfiles import read_json, write_json
from fairlead.untrusted_json import text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySettings:
    """Settings that `fairlead registry set` has stored.

    Attributes:
        url: Registry and name of the images, as the user wrote it.
        base: Name of the base image by its digest.
        base_name: The name that the user gave for it.
        python: Full version of the base image's Python.
        platform: Platform of the nodes, such as linux/amd64.
        pull_secret: Secret of the namespace with which nodes pull; None for none.
    """

    url: str
    base: str
    base_name: str
    python: str
    platform: str
    pull_secret: str | None = None

    @property
    def target(self) -> Reference:
        return read_target(self.url)


def read_target(url: str) -> Reference:
    """Parse registry and name of the images.

    Raises:
        InvalidArgument: It is none, or has a tag or a digest.
    """
    reference = read_reference(url, tag=None)
    if reference.tag or reference.digest:
        raise InvalidArgument(
            f"{url!r} names one image; give the registry and a name without tag and digest, as in "
            "ghcr.io/acme/environments."
        )
    return reference


def read_settings(path: Path) -> RegistrySettings | None:
    """Return the settings; None if none are stored.

    Raises:
        ClusterError: The file is not one that `fairlead registry set` wrote.
    """
    if not path.exists():
        return None
    content: Mapping[str, Any] = read_json(path) or {}
    values = {name: text(content.get(name)) for name in ("url", "base", "base_name", "python", "platform")}
    if None in values.values():
        raise ClusterError(f"{path} is damaged. `fairlead registry set URL` writes it anew.")
    complete = {name: value for name, value in values.items() if value is not None}
    return RegistrySettings(**complete, pull_secret=text(content.get("pull_secret")))


def write_settings(path: Path, settings: RegistrySettings) -> None:
    """Store the settings."""
    write_json(path, asdict(settings))
