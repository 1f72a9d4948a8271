"""The part of MLflow's REST API that runs and models need, used without MLflow's package.

See https://mlflow.org/docs/latest/api_reference/rest-api.html. Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request

from fairlead.runtime.experiment_tracking.target import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO, Any

TIMEOUT_S = 10.0
# Used if no experiment is named, as in MLflow's own clients.
DEFAULT_EXPERIMENT = "0"
NOT_THERE = "RESOURCE_DOES_NOT_EXIST"
THERE_ALREADY = "RESOURCE_ALREADY_EXISTS"
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_TRUE = ("true", "1")


class MlflowError(Refused):
    """The server answered with an error.

    Attributes:
        code: MLflow's error code, such as ``RESOURCE_DOES_NOT_EXIST``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Mlflow:
    """An MLflow server. ``timeout_s`` may be changed at any time."""

    def __init__(self, uri: str, env: Mapping[str, str]) -> None:
        """Parse the address and the credentials; nothing is sent yet.

        Args:
            uri: The server's address, as in ``MLFLOW_TRACKING_URI``.
            env: The environment, with the variables by which MLflow's clients authenticate.

        Raises:
            Refused: The address is not an HTTP or HTTPS URL.
        """  # fmt: skip
        split = urllib.parse.urlsplit(uri)
        if split.scheme not in ("http", "https") or not split.hostname:
            shown = uri if "@" not in uri else split.scheme
            raise Refused(
                f"{shown!r} is not an address of an MLflow server; give one that begins with http:// or https://"
            )
        host = split.hostname + (f":{split.port}" if split.port else "")
        self.address = urllib.parse.urlunsplit((split.scheme, host, split.path.rstrip("/"), "", ""))
        self.timeout_s = TIMEOUT_S
        self._headers = {"Content-Type": "application/json", **_signed_in(split, env)}
        self._context = _tls(env) if split.scheme == "https" else None

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Send a GET request to ``/api/2.0/mlflow/PATH``.

        Raises:
            MlflowError: The server refuses the request.
            OSError: The server does not answer, or is busy.
        """
        return self._exchange("GET", f"/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}", None)

    def post(self, path: str, body: Mapping[str, Any], method: str = "POST") -> dict[str, Any]:
        """Send a JSON body to ``/api/2.0/mlflow/PATH``; raises the errors of ``get``."""
        return self._exchange(method, f"/api/2.0/mlflow/{path}", json.dumps(body).encode())

    def upload(self, path: str, file: IO[bytes], size: int) -> None:
        """Upload a file to the artifacts that the server stores itself; raises the errors of ``get``."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        self._exchange("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{urllib.parse.quote(path)}", file, headers)

    def experiment(self, env: Mapping[str, str]) -> str:
        """Return the id of the experiment that the variables name, created if needed; raises the errors of ``get``."""
        if env.get("MLFLOW_EXPERIMENT_ID"):
            return env["MLFLOW_EXPERIMENT_ID"]
        name = env.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return DEFAULT_EXPERIMENT
        for is_last in (False, True):
            try:
                experiment = self.get("experiments/get-by-name", experiment_name=name)["experiment"]
            except MlflowError as error:
                if error.code != NOT_THERE or is_last:
                    raise
            else:
                if experiment.get("lifecycle_stage") == "deleted":
                    raise Refused(f"the experiment {name!r} is deleted there; restore it, or name another")
                return str(experiment["experiment_id"])
            try:
                return str(self.post("experiments/create", {"name": name})["experiment_id"])
            except MlflowError as error:
                if error.code != THERE_ALREADY:  # another client has just created it
                    raise
        raise AssertionError("the second look raises")

    def find_run(self, experiment: str, tag: str, value: str) -> dict[str, Any] | None:
        """Return the run of an experiment that has a tag, or None; raises the errors of ``get``."""
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`{tag}` = '{value}'", "max_results": 1}
        runs = self.post("runs/search", wanted).get("runs") or []
        return runs[0] if runs else None

    def _exchange(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        all_headers = {**self._headers, **(headers or {})}
        request = urllib.request.Request(self.address + path, data=body, headers=all_headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s, context=self._context) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _explained(error, self.address) from error
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self.address} answered with no HTTP: {error!r}") from error
        except ValueError as error:
            raise Refused(f"{self.address}: {error}") from error
        try:
            document = json.loads(data or b"{}")
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Refused(f"{self.address} answers as no MLflow server does; correct the address")
        return document


def _explained(error: urllib.error.HTTPError, address: str) -> Exception:
    text = error.read(1 << 16).decode("utf-8", "replace")
    try:
        document = json.loads(text)
        code, message = str(document.get("error_code", "")), str(document.get("message", ""))
    except (ValueError, AttributeError):
        code, message = "", " ".join(text.split())
    if error.code in _RETRIED:
        return ConnectionError(f"{address} answers {error.code} {message[:200]}".strip())
    if error.code in (401, 403):
        hint = "; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, sign in"
        return MlflowError(f"{address} answers {error.code}{hint}", code)
    if not code:
        return MlflowError(f"{address} answers {error.code}, as no MLflow server does; correct the address", code)
    return MlflowError(f"{address} refuses it: {message[:300]}", code)


def _signed_in(split: urllib.parse.SplitResult, env: Mapping[str, str]) -> dict[str, str]:
    user = env.get("MLFLOW_TRACKING_USERNAME") or urllib.parse.unquote(split.username or "")
    password = env.get("MLFLOW_TRACKING_PASSWORD") or urllib.parse.unquote(split.password or "")
    if user:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    token = env.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls(env: Mapping[str, str]) -> ssl.SSLContext:
    own = env.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    context = ssl.create_default_context(cafile=own if own and os.path.isfile(own) else None)
    if env.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in _TRUE:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
