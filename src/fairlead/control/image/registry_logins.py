"""Finds logins for registries that `docker login` stored in ~/.docker/config.json or a credential helper."""

import base64
import binascii
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.control.image.references import DOCKER_HUB
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

HUB_KEY = "https://index.docker.io/v1/"
HELPER_S = 60.0
# User name with which a helper marks the secret as a token.
TOKEN_USER = "<token>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login for one registry.

    Attributes:
        identity_token: Refresh token, used instead of user and password.
    """

    user: str = ""
    password: str = ""
    identity_token: str | None = None

    @property
    def basic(self) -> str:
        """Return the ``Authorization`` header with user and password."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_login(registry: str, environ: Mapping[str, str] = os.environ) -> Login | None:
    """Return the login for a registry; None without one.

    Raises:
        ClusterError: The file or the configured helper cannot be read.
    """
    home = environ.get("DOCKER_CONFIG")
    path = (Path(home) if home else Path(environ.get("HOME", "~")).expanduser() / ".docker") / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        entries: dict[str, Any] = config.get("auths") or {}
        helpers: dict[str, Any] = config.get("credHelpers") or {}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise ClusterError(f"{path}, where logins for registries are, cannot be read: {error}") from error
    keys = (HUB_KEY, DOCKER_HUB, "index.docker.io") if registry == DOCKER_HUB else (registry, f"https://{registry}")
    for key in keys:
        helper = helpers.get(key) or (config.get("credsStore") if key in entries else None)
        if helper:
            return _ask(str(helper), key)
        if entries.get(key):
            return _read(entries[key], path, key)
    return None


def _read(entry: Mapping[str, Any], path: Path, key: str) -> Login:
    try:
        user, _, password = base64.b64decode(entry.get("auth") or "", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: the login of {key} cannot be read ({error}). Log in again.") from error
    return Login(
        user=str(entry.get("username") or user),
        password=str(entry.get("password") or password.rstrip("\0")),
        identity_token=entry.get("identitytoken") or None,
    )


def _ask(helper: str, key: str) -> Login | None:
    program = shutil.which(f"docker-credential-{helper}")
    if program is None:
        raise ClusterError(f"The login of {key} is kept by docker-credential-{helper}, which is not on the PATH.")
    try:
        done = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, check=False, timeout=HELPER_S
        )
        if done.returncode:
            if "not found" in done.stdout:
                return None
            raise ClusterError(f"docker-credential-{helper} has no login of {key}: {done.stdout.strip()[-300:]}")
        login = json.loads(done.stdout)
        user, secret = str(login["Username"]), str(login["Secret"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        raise ClusterError(f"docker-credential-{helper} gave no login of {key}: {error}") from error
    return Login(identity_token=secret) if user == TOKEN_USER else Login(user=user, password=secret)
