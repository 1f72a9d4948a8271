"""Problems that a client gets instead of a result. Raised below a route, turned into an answer by the HTTP server.

Problem
  BadRequest      400, the client's mistake; the message says what was given, the rule, and how to mend it
  NotFound        404, another model, version or route
  WrongMethod     405, a route that does not know this method; says which it knows
  TooLarge        413, a body beyond the limit
  TooManyWaiting  429, the queue is full; says when to come again
  Unavailable     503, not loaded yet, or about to end
  PredictFailed   500, the predictor raised, or gave what is no result
"""

from __future__ import annotations


class Problem(Exception):
    """An answer that is no result.

    Attributes:
        status: The HTTP status.
        retry_after_s: Whole seconds after which it makes sense to try again; None if it does not.
        allow: The methods that a route knows, where another was asked for.
        code: OpenAI's word for it.
    """

    status = 500
    code = "server_error"

    def __init__(self, message: str, *, retry_after_s: int | None = None, allow: str | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.allow = allow


class BadRequest(Problem):
    """A mistake of the client's."""

    status = 400
    code = "invalid_request_error"


class NotFound(Problem):
    """Another model, version or route."""

    status = 404
    code = "not_found_error"


class WrongMethod(Problem):
    """A route that does not know this method."""

    status = 405
    code = "invalid_request_error"


class TooSlow(Problem):
    """A body that took too long to come."""

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
    """The predictor raised, or what it gave is no result."""


class Unavailable(Problem):
    """Not loaded yet, or about to end."""

    status = 503
    code = "service_unavailable_error"
