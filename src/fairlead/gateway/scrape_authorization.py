"""Decides who may read metrics in a cluster: whom the API server knows by the token and lets ``get`` ``/metrics``.

As with Kubernetes' own components, by a TokenReview and a SubjectAccessReview; answers are kept for a minute. The
operator and the gateways use it.
"""

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

log = logging.getLogger("fairlead.metrics")

TOKEN_MOST = 16_384
ANSWERS_MOST = 256
ALLOWED_S, DENIED_S = 60.0, 10.0
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


REFUSALS = {
    HTTPStatus.UNAUTHORIZED: "give the token of an account that may get /metrics, as `Authorization: Bearer TOKEN`\n",
    HTTPStatus.FORBIDDEN: "this account may not get /metrics; bind the ClusterRole fairlead-metrics-reader to it\n",
    HTTPStatus.SERVICE_UNAVAILABLE: "the API server cannot be asked who you are\n",
}

Object = dict[str, Any]
Create = Callable[[str, Object], Object]
"""Creates an object at a path of the API server, and returns the answer."""


class ScrapeAuthorizer:
    """Judges requests for metrics by their header ``Authorization``. Thread-safe.

    Args:
        errors: Errors of ``create`` by which the API server cannot be asked now.
    """

    def __init__(
        self, create: Create, errors: tuple[type[Exception], ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._create = create
        self._errors = errors
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[bytes, tuple[HTTPStatus, float]] = OrderedDict()

    def __call__(self, header: str | None) -> HTTPStatus:
        """Return 200, 401 without a known token, 403 without the right, 503 while the API server does not answer."""
        scheme, _, token = (header or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > TOKEN_MOST:
            return HTTPStatus.UNAUTHORIZED
        key, now = hashlib.sha256(token.encode()).digest(), self._clock()
        with self._lock:
            status, until = self._answers.get(key, (HTTPStatus.OK, now))
            if now < until:
                return status
        try:
            status = self._ask(token)
        except self._errors as error:
            log.warning("nobody can be authorized to read metrics: %s", error)
            return HTTPStatus.SERVICE_UNAVAILABLE
        with self._lock:
            self._answers[key] = status, now + (ALLOWED_S if status is HTTPStatus.OK else DENIED_S)
            self._answers.move_to_end(key)
            while len(self._answers) > ANSWERS_MOST:
                self._answers.popitem(last=False)
        return status

    def _ask(self, token: str) -> HTTPStatus:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = self._create(REVIEWS, review).get("status") or {}
        if not status.get("authenticated"):
            return HTTPStatus.UNAUTHORIZED
        user = status.get("user") or {}
        spec = {
            "user": user.get("username", ""), "uid": user.get("uid", ""), "groups": user.get("groups") or [],
            "extra": user.get("extra") or {}, "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }  # fmt: skip
        access = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        is_allowed = (self._create(ACCESS, access).get("status") or {}).get("allowed")
        return HTTPStatus.OK if is_allowed else HTTPStatus.FORBIDDEN
