"""The port to stores of logs, in which a collector keeps all output of pods that are gone."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from fairlead.errors import ClusterError

RUN_UID, ATTEMPT, INDEX = "fairlead_run_uid", "fairlead_attempt", "fairlead_index"
"""The labels of a pod as a collector keeps them with its lines."""
Place: TypeAlias = tuple[int, int]
"""Attempt and index of a pod."""
ANSWER_S = 30.0


class KeptOutput(Protocol):
    """A store of logs."""

    def lines(self, uid: str, since: float, until: float) -> dict[Place, str]:
        """Return what was kept of a run's pods within a time, by attempt and index, as kubelet's log has it.

        Raises:
            ClusterError: It does not answer, or refuses.
        """
        ...


def address_of(environ: Mapping[str, str], variable: str, example: str) -> str | None:
    """Return the address of a store that the environment names; None where it names none.

    Raises:
        ClusterError: It names something else than an address of HTTP.
    """
    url = environ.get(variable)
    if not url:
        return None
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ClusterError(f"{variable} is {url!r}; give an address such as {example}")
    return url.rstrip("/")


def place_of(labels: Mapping[str, Any]) -> Place:
    """Return the pod that labels tell of."""
    return int(labels.get(ATTEMPT) or 0), int(labels.get(INDEX) or 0)


def ask(store: str, request: urllib.request.Request) -> Any:
    """Return what a store answers, from JSON.

    Args:
        store: As in "Loki at https://loki.example.com".

    Raises:
        ClusterError: It does not answer, or refuses, or answers something else than JSON.
    """
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read(300).decode(errors="replace").strip()
        raise ClusterError(f"{store} answers {error.code}: {said or error.reason}") from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"{store} cannot be asked: {error}") from error
