"""Reads the output of deleted pods from Loki, by its HTTP API (`/loki/api/v1/query_range`).

The collector stores lines as kubelet has them, with three labels of the pod as stream labels: ``fairlead_run_uid``,
``fairlead_attempt`` and ``fairlead_index`` (docs/logs.md has the configuration for Alloy and Fluent Bit).
"""

import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

from fairlead.cluster.kubernetes.client.kept_output import RUN_UID, Place, address_of, ask, place_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

URL, TOKEN, TENANT = "FAIRLEAD_LOKI_URL", "FAIRLEAD_LOKI_TOKEN", "FAIRLEAD_LOKI_TENANT"
# Loki's default limit of one response, and Fairlead's limit of lines for one read.
PAGE, MOST_LINES = 5_000, 1_000_000
# Loki's default limit of a query's time span is 30 days and an hour.
MOST_NS = 30 * 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Loki:
    """A Loki server.

    Attributes:
        token: Bearer token; None sends none.
        tenant: The tenant, for ``X-Scope-OrgID``; None sends none.
    """

    url: str
    token: str | None = None
    tenant: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Loki | None":
        """Return the server that the environment names, or None.

        Raises:
            ClusterError: The variable is not an HTTP address.
        """
        url = address_of(environ, URL, "https://loki.example.com")
        if url is None:
            return None
        return cls(url=url, token=environ.get(TOKEN) or None, tenant=environ.get(TENANT) or None)

    def lines(self, uid: str, since: float, until: float) -> dict[Place, str]:
        """Return the stored output of a run's pods in a time span, by attempt and index, in kubelet's log format.

        Raises:
            ClusterError: The server does not answer, or refuses.
        """
        query = f'{{{RUN_UID}="{uid}"}}'
        start_ns, last_ns = round(since * 1e9), round(until * 1e9) + 1
        lines_by_place: defaultdict[Place, list[tuple[int, str]]] = defaultdict(list)
        seen: set[tuple[Place, int, str]] = set()
        while len(seen) < MOST_LINES and start_ns < last_ns:
            end_ns = min(last_ns, start_ns + MOST_NS)
            page = self._page(query, start_ns, end_ns)
            new = [entry for entry in page if entry not in seen]
            for place, at_ns, text in new:
                lines_by_place[place].append((at_ns, text))
            seen.update(new)
            # If one instant has more lines than a response can hold, the rest cannot be read.
            start_ns = max(at_ns for _, at_ns, _ in page) if len(page) >= PAGE and new else end_ns
        return {
            place: "".join(f"{_moment(at_ns)} {text}\n" for at_ns, text in sorted(lines, key=lambda line: line[0]))
            for place, lines in lines_by_place.items()
        }

    def _page(self, query: str, start_ns: int, end_ns: int) -> list[tuple[Place, int, str]]:
        parameters = {"query": query, "start": start_ns, "end": end_ns, "limit": PAGE, "direction": "forward"}
        request = urllib.request.Request(f"{self.url}/loki/api/v1/query_range?{urllib.parse.urlencode(parameters)}")
        if self.token is not None:
            request.add_header("Authorization", f"Bearer {self.token}")
        if self.tenant is not None:
            request.add_header("X-Scope-OrgID", self.tenant)
        store = f"Loki at {self.url}"
        content = ask(store, request)
        try:
            streams = content["data"]["result"]
            return [
                (place_of(stream["stream"]), int(at_ns), str(text).rstrip("\n"))
                for stream in streams
                for at_ns, text, *_ in stream["values"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ClusterError(f"{store} cannot be asked: {error}") from error


def _moment(at_ns: int) -> str:
    second, part_ns = divmod(at_ns, 10**9)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{part_ns:09d}Z"
