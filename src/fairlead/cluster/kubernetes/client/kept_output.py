"""The port to log stores, in which a collector keeps the output of deleted pods."""

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from fairlead.errors import ClusterError
from fairlead.untrusted_json import parse_json

RUN_UID, ATTEMPT, INDEX = "fairlead_run_uid", "fairlead_attempt", "fairlead_index"
"""The labels of a pod that a collector stores with its lines."""
Place: TypeAlias = tuple[int, int]
"""Attempt and index of a pod."""
MOST_ANSWER_BYTES = 256 << 20
ANSWER_S = 30.0


class KeptOutput(Protocol):
    """A log store."""

    def lines(self, uid: str, since: float, until: float) -> dict[Place, str]:
        """Return the stored output of a run's pods in a time span, by attempt and index, in kubelet's log format.

        Raises:
            ClusterError: The store does not answer, or refuses.
        """
        ...


def address_of(environ: Mapping[str, str], variable: str, example: str) -> str | None:
    """Return the address of a store that the environment names, or None.

    Raises:
        ClusterError: The variable is not an HTTP address.
    """
    url = environ.get(variable)
    if not url:
        return None
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ClusterError(f"{variable} is {url!r}; give an address such as {example}")
    return url.rstrip("/")


def place_of(labels: Mapping[str, Any]) -> Place:
    """Return the attempt and the index in a pod's labels."""
    return int(labels.get(ATTEMPT) or 0), int(labels.get(INDEX) or 0)


def ask(store: str, request: urllib.request.Request) -> Any:
    """Send a request to a store and return its parsed JSON response.

    Args:
        store: The store for messages, as in "Loki at https://loki.example.com".

    Raises:
        ClusterError: The store does not answer, refuses, or returns something other than JSON.
    """
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return parse_json(answer.read(MOST_ANSWER_BYTES + 1), max_bytes=MOST_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        body = error.read(300).decode(errors="replace").strip()
        raise ClusterError(f"{store} answers {error.code}: {body or error.reason}") from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"{store} cannot be asked: {error}") from error
