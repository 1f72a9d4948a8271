"""Errors that a client gets instead of a result. Code below a route raises them; the HTTP server sends them.

Problem
  BadRequest      400, a mistake of the client; the message has the value, the rule and the remedy
  NotFound        404, another model, version or route
  WrongMethod     405, a route that does not support this method; names the supported one
  TooSlow         408, a body that did not arrive in time
  TooLarge        413, a body beyond the limit
  TooManyWaiting  429, the queue is full; has the time after which to retry
  Unavailable     503, not loaded yet, or shutting down
  PredictFailed   500, the predictor raised an error, or returned an invalid result
"""

from __future__ import annotations


class Problem(Exception):
    """A response that is not a result.

    Attributes:
        status: The HTTP status.
        retry_after_s: Whole seconds after which to retry; None if a retry is useless.
        allow: The methods that the route supports, if the request used another.
        code: OpenAI's error type.
    """

    status = 500
    code = "server_error"

    def __init__(self, message: str, *, retry_after_s: int | None = None, allow: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.allow = allow


class BadRequest(Problem):
    """A mistake of the client."""

    status = 400
    code = "invalid_request_error"


class NotServed(Problem):
    """Another model, version or route."""

    status = 404
    code = "not_found_error"


class WrongMethod(Problem):
    """A route that does not support this method."""

    status = 405
    code = "invalid_request_error"


class TooSlow(Problem):
    """A body that did not arrive in time."""

    status = 408
    code = "invalid_request_error"


class TooLarge(Problem):
    """A body beyond the limit."""

    status = 413
    code = "invalid_request_error"


class TooManyWaiting(Problem):
    """The queue is full."""

    status = 429
    code = "rate_limit_error"


class PredictFailed(Problem):
    """The predictor raised an error, or returned an invalid result."""


class Unavailable(Problem):
    """Not loaded yet, or shutting down."""

    status = 503
    code = "service_unavailable_error"
