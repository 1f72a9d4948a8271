"""A client of image registries, by the OCI distribution specification 1.1 and Docker's token authentication.

An upload is one request. Existing blobs are not sent, and blobs of another repository in the registry are mounted.
"""

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import urllib3

from fairlead.cluster.kubernetes.api.transport import proxy_of_environment
from fairlead.control.image.content import DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST, Blob
from fairlead.control.image.references import DOCKER_HUB, Reference
from fairlead.control.image.registry_logins import Login, find_login
from fairlead.errors import ClusterError, NotAllowed, NotFound

HUB_HOST = "registry-1.docker.io"
CONNECT_S, READ_S = 10.0, 60.0
CHUNK = 1 << 20
MOST_MANIFEST = 4 << 20  # registries may refuse larger ones, by the specification
# Transient errors are retried; a response of 429 states the delay.
RETRIES = urllib3.Retry(total=3, backoff_factor=0.5, status_forcelist=(429, 502, 503, 504), raise_on_status=False)
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A scheme, with a value of its own instead of parameters or without, or a parameter of the scheme before it.
_PART = re.compile(
    rf"({_TOKEN})(?=[ \t]*(?:,|$)|[ \t]+[^ \t=,])(?:[ \t]+[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$)))?"
    rf'|({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))'
)
_QUOTED_PAIR = re.compile(r"\\(.)")

Response = urllib3.BaseHTTPResponse


class Registry:
    """A client of one registry. A context manager; not thread-safe.

    Args:
        of: Any image in the registry.
        login: None for the login stored by `docker login`.
    """

    def __init__(self, of: Reference, login: Login | None = None) -> None:
        host = HUB_HOST if of.registry == DOCKER_HUB else of.registry
        self.name = of.registry
        self._root = f"{'http' if of.is_plain else 'https'}://{host}"
        self._login = login or find_login(of.registry)
        self._authorization: dict[str, str] = {}
        settings: dict[str, Any] = {"retries": RETRIES, "timeout": urllib3.Timeout(connect=CONNECT_S, read=READ_S)}
        proxy = proxy_of_environment(self._root)
        self._http = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)

    def __enter__(self) -> "Registry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.clear()

    def manifest(self, repository: str, version: str) -> tuple[str, bytes]:
        """Return the media type and bytes of a manifest or an index, by tag or digest.

        Raises:
            NotFound: It does not exist.
            ClusterError: The request failed.
        """
        accepted = ", ".join((INDEX, MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST))
        path = f"/v2/{repository}/manifests/{version}"
        answer = self._ask("GET", path, _pull(repository), headers={"Accept": accepted})
        data = answer.data
        if len(data) > MOST_MANIFEST:
            raise ClusterError(f"{self.name}/{repository}: the manifest has {len(data)} bytes, which is no manifest.")
        if version.startswith("sha256:") and f"sha256:{sha256(data).hexdigest()}" != version:
            raise ClusterError(f"{self.name}/{repository}@{version} was answered with other content.")
        return answer.headers.get("Content-Type", "").partition(";")[0], data

    def fetch(self, repository: str, digest: str, target: Path) -> Path:
        """Download a blob and verify its digest.

        Raises:
            ClusterError: The download failed or does not match.
        """
        answer = self._ask("GET", f"/v2/{repository}/blobs/{digest}", _pull(repository), stream=True)
        checksum = sha256()
        unfinished = target.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as file:
                for chunk in answer.stream(CHUNK, decode_content=False):
                    checksum.update(chunk)
                    file.write(chunk)
        except urllib3.exceptions.HTTPError as error:
            raise ClusterError(f"{self.name}/{repository}: {digest} was not downloaded whole: {error}") from error
        finally:
            answer.release_conn()
        if f"sha256:{checksum.hexdigest()}" != digest:
            raise ClusterError(f"{self.name}/{repository}: what came as {digest} is sha256:{checksum.hexdigest()}.")
        return unfinished.rename(target)

    def has(self, repository: str, digest: str) -> bool:
        """Return whether a repository has a blob."""
        path = f"/v2/{repository}/blobs/{digest}"
        return self._ask("HEAD", path, _push(repository), allowed=(404,)).status == 200

    def send(self, repository: str, blob: Blob) -> str:
        """Upload a blob to a repository; return how: ``there`` (it existed), ``mounted`` or ``sent``.

        Raises:
            ClusterError: The registry refused it.
        """
        if self.has(repository, blob.digest):
            return "there"
        start = f"/v2/{repository}/blobs/uploads/"
        origin = blob.origin
        if origin is not None and origin.registry == self.name:
            mount = urlencode({"mount": blob.digest, "from": origin.repository})
            scopes = f"{_push(repository)} {_pull(origin.repository)}"
            answer = self._ask("POST", f"{start}?{mount}", scopes)
            if answer.status == 201:
                return "mounted"
        else:
            answer = self._ask("POST", start, _push(repository))
        place = urljoin(self._root + start, answer.headers.get("Location") or "")
        parts = urlsplit(place)
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("digest", blob.digest)])
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        self._ask("PUT", parts._replace(query=query).geturl(), _push(repository), headers=headers, body=blob.fetch())
        return "sent"

    def tag(self, repository: str, version: str, manifest: bytes) -> None:
        """Upload a manifest to a repository that has its blobs.

        Raises:
            ClusterError: The registry refused it.
        """
        headers = {"Content-Type": MANIFEST}
        self._ask("PUT", f"/v2/{repository}/manifests/{version}", _push(repository), headers=headers, body=manifest)

    def _ask(
        self,
        method: str,
        path: str,
        scope: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path | None = None,
        stream: bool = False,
        allowed: Iterable[int] = (),
    ) -> Response:
        """Send a request; repeat it with a new token if the registry requires one."""
        answer = self._once(method, path, scope, headers, body, stream)
        if answer.status == 401 and self._is_ours(answer.url or path):
            challenge = answer.headers.get("WWW-Authenticate", "")
            answer.drain_conn()
            self._authorization[scope] = self._authorize(challenge, scope)
            answer = self._once(method, path, scope, headers, body, stream)
        if answer.status < 300 or answer.status in allowed:
            return answer
        message = f"{self.name} answered {answer.status} to {method} {urlsplit(path).path}{_error_message(answer)}"
        if answer.status == 404:
            raise NotFound(f"{message}. Is the name right?")
        if answer.status in (401, 403):
            who = f"as {self._login.user or 'the owner of a token'}" if self._login else "without a login"
            raise NotAllowed(f"{message}; it was asked {who}. `docker login {self.name}` leaves one.")
        raise ClusterError(f"{message}.")

    def _once(
        self,
        method: str,
        path: str,
        scope: str,
        headers: Mapping[str, str] | None,
        body: bytes | Path | None,
        stream: bool,
    ) -> Response:
        url = path if "://" in path else self._root + path
        all_headers = dict(headers or {})
        if scope in self._authorization and self._is_ours(url):
            all_headers["Authorization"] = self._authorization[scope]
        return self._send(method, url, all_headers, body, stream=stream)

    def _is_ours(self, url: str) -> bool:
        """Return whether a URL belongs to the registry.

        Uploads and downloads may be redirected to another host. That host gets no credentials, and its challenges for a
        login are ignored; the same holds for this host without TLS if the registry has TLS.
        """
        return urlsplit(urljoin(self._root, url))[:2] == urlsplit(self._root)[:2]

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path | None = None,
        *,
        stream: bool = False,
    ) -> Response:
        try:
            if isinstance(body, Path):
                with body.open("rb") as file:
                    return self._http.request(method, url, headers=headers, body=file)
            return self._http.request(method, url, headers=headers, body=body, preload_content=not stream)
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise ClusterError(f"The registry {self.name} cannot be reached: {reason}") from error

    def _authorize(self, challenge: str, scope: str) -> str:
        """Return the ``Authorization`` header for a challenge: a password, or a token from a token server."""
        challenges = _challenges(challenge)
        bearer = next((parameters for kind, parameters in challenges if kind == "bearer" and "realm" in parameters), {})
        if not bearer and self._login is not None and any(kind == "basic" for kind, _ in challenges):
            return self._login.basic
        if not bearer:
            raise NotAllowed(
                f"{self.name} wants to know who asks. Log in with `docker login {self.name}`: the login is looked for "
                "where that leaves it."
            )
        if self._login is not None and self._root.startswith("https:") and not bearer["realm"].startswith("https:"):
            raise NotAllowed(
                f"{self.name} wants the login shown to {bearer['realm']}, without TLS, where others can read it. Its "
                "realm has to begin with https://."
            )
        service = {"service": bearer["service"]} if "service" in bearer else {}
        scopes = scope.split()
        if self._login is not None and self._login.identity_token is not None:
            form = {"grant_type": "refresh_token", "client_id": "fairlead", "scope": scope, **service}
            body = urlencode({**form, "refresh_token": self._login.identity_token}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = self._send("POST", bearer["realm"], headers, body)
        else:
            query = urlencode([*service.items(), *(("scope", name) for name in scopes)])
            headers = {"Authorization": self._login.basic} if self._login else {}
            answer = self._send("GET", f"{bearer['realm']}{'&' if '?' in bearer['realm'] else '?'}{query}", headers)
        try:
            grant = json.loads(answer.data)
            token = grant.get("token") or grant["access_token"]
        except (ValueError, KeyError, AttributeError):
            raise NotAllowed(
                f"{urlsplit(bearer['realm']).netloc}, which gives tokens for {self.name}, answered {answer.status}"
                f"{_error_message(answer)}. Log in again with `docker login {self.name}`."
            ) from None
        return f"Bearer {token}"


def _challenges(header: str) -> list[tuple[str, dict[str, str]]]:
    """Read ``WWW-Authenticate`` headers, joined by commas: each challenge's scheme and parameters (RFC 9110, 11)."""
    challenges: list[tuple[str, dict[str, str]]] = []
    for match in _PART.finditer(header):
        scheme, name, quoted, plain = match.groups()
        if scheme is not None:
            challenges.append((scheme.lower(), {}))
        elif challenges:
            challenges[-1][1][name.lower()] = plain if quoted is None else _QUOTED_PAIR.sub(r"\1", quoted)
    return challenges


def _pull(repository: str) -> str:
    return f"repository:{repository}:pull"


def _push(repository: str) -> str:
    return f"repository:{repository}:pull,push"


def _error_message(answer: Response) -> str:
    """Return the error message of a response after a colon; empty without one."""
    try:
        errors = json.loads(answer.data).get("errors") or [{}]
        message = str(errors[0].get("message") or errors[0].get("code") or "")
    except (ValueError, AttributeError, KeyError, TypeError, urllib3.exceptions.HTTPError):
        return ""
    return f": {message[:300]}" if message else ""
