"""Authenticates to an API server: with tokens, which are renewed, and with exec plugins."""

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

# A kubelet renews a token after 80 % of its hour; client-go reads the file once a minute.
REREAD_S = 60.0
# A plugin may open a browser and wait for the user.
PLUGIN_TIMEOUT_S = 300.0
# Margin so that a token does not expire in transit.
EARLY_S = 30.0
VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credentials(Protocol):
    """The source of the identity. Thread-safe."""

    def authorization(self) -> str | None:
        """Return the current value of the header ``Authorization``; None for no header.

        Raises:
            ClusterError: The credentials cannot be obtained.
        """
        ...

    def certificate(self) -> tuple[bytes, bytes] | None:
        """Return the PEM of a client certificate and its key that came with the credentials."""
        ...

    def reject(self) -> bool:
        """Discard cached credentials that the server refused; return whether new ones may differ."""
        ...


class Anonymous:
    """No credentials; the user is anonymous, or named by a client certificate."""

    def authorization(self) -> str | None:
        return None

    def certificate(self) -> tuple[bytes, bytes] | None:
        return None

    def reject(self) -> bool:
        return False


class FixedToken(Anonymous):
    """A bearer token that never changes."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def authorization(self) -> str | None:
        return self._header


class Basic(Anonymous):
    """A name and a password, as required by some proxies in front of an API server."""

    def __init__(self, username: str, password: str) -> None:
        self._header = "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()

    def authorization(self) -> str | None:
        return self._header


class TokenFile(Anonymous):
    """A bearer token in a file that another process renews."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: str | None = None
        self._read_at = 0.0

    def authorization(self) -> str | None:
        if self._header is None or time.monotonic() - self._read_at > REREAD_S:
            try:
                self._header = f"Bearer {self._path.read_text().strip()}"
            except OSError as error:
                raise ClusterError(f"The token file {self._path} cannot be read: {error.strerror}.") from error
            self._read_at = time.monotonic()
        return self._header

    def reject(self) -> bool:
        before, self._header = self._header, None
        return self.authorization() != before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A plugin's answer; ``expires_at`` is Unix time, None for never."""

    token: str | None
    certificate: tuple[bytes, bytes] | None
    expires_at: float | None


class ExecPlugin:
    """A command that prints credentials, such as ``aws eks get-token`` or ``gke-gcloud-auth-plugin``."""

    def __init__(self, content: dict[str, Any], *, directory: Path, context: str, cluster: dict[str, Any]) -> None:
        self._content = content
        self._directory = directory
        self._context = context
        self._cluster = cluster
        self._lock = threading.Lock()
        self._answer: _Answer | None = None
        if content.get("apiVersion") not in VERSIONS:
            raise ClusterError(
                f"Context {context!r}: its exec plugin speaks {content.get('apiVersion')!r}; this Fairlead knows "
                f"{' and '.join(VERSIONS)}. Upgrade the plugin and write the kubeconfig anew with it."
            )

    def authorization(self) -> str | None:
        token = self._current().token
        return None if token is None else f"Bearer {token}"

    def certificate(self) -> tuple[bytes, bytes] | None:
        return self._current().certificate

    def reject(self) -> bool:
        with self._lock:
            self._answer = None
        return True

    def _current(self) -> _Answer:
        with self._lock:
            answer = self._answer
            if answer is None or (answer.expires_at is not None and time.time() > answer.expires_at - EARLY_S):
                answer = self._answer = self._ask()
            return answer

    def _ask(self) -> _Answer:
        content = self._content
        command = str(content.get("command") or "")
        # A command with a slash is relative to its file; any other is searched for on the PATH.
        path = str((self._directory / command).resolve()) if os.sep in command else shutil.which(command)
        if path is None:
            hint = content.get("installHint")
            raise ClusterError(
                f"Context {self._context!r} needs the command {command!r} to log in, which is not on the PATH."
                + (f" {str(hint).strip()}" if hint else "")
            )
        spec: dict[str, Any] = {"interactive": False}
        if content.get("provideClusterInfo"):
            spec["cluster"] = {key: value for key, value in self._cluster.items() if key != "extensions"}
        info = {"apiVersion": content["apiVersion"], "kind": "ExecCredential", "spec": spec}
        environ = {**os.environ, **{entry["name"]: str(entry["value"]) for entry in content.get("env") or ()}}
        environ["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        try:
            done = subprocess.run(
                [path, *(str(argument) for argument in content.get("args") or ())],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLUGIN_TIMEOUT_S,
                check=True,
            )
            return _read(json.loads(done.stdout))
        except subprocess.CalledProcessError as error:
            stderr = error.stderr.decode(errors="replace").strip()[-600:]
            raise ClusterError(f"{command} could not log in (exit code {error.returncode}): {stderr}") from error
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"{command}, which logs in to {self._context!r}, gave no credentials: {error}"
            ) from error


def _read(answer: dict[str, Any]) -> _Answer:
    status = answer["status"]
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    token = status.get("token")
    if token is None and certificate is None:
        raise ValueError("it printed neither a token nor a certificate")
    expires = status.get("expirationTimestamp")
    return _Answer(
        token=token,
        certificate=(certificate.encode(), key.encode()) if certificate and key else None,
        expires_at=datetime.fromisoformat(expires).timestamp() if expires else None,
    )
