"""Reads the output of deleted pods from Elasticsearch or OpenSearch, by their HTTP API (`_search` with a scroll).

The collector creates one document for each line: the line as kubelet has it in ``log``, its time in ``@timestamp``, and
three labels of the pod in ``fairlead_run_uid``, ``fairlead_attempt`` and ``fairlead_index`` (docs/logs.md has the
configuration for rsyslog and Fluent Bit).
"""

import contextlib
import json
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.cluster.kubernetes.client.kept_output import RUN_UID, Place, address_of, ask, place_of
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

URL, INDICES, API_KEY = "FAIRLEAD_ELASTICSEARCH_URL", "FAIRLEAD_ELASTICSEARCH_INDEX", "FAIRLEAD_ELASTICSEARCH_API_KEY"
DEFAULT_INDICES = "fairlead-*"
# Elasticsearch's default limit of one response, and Fairlead's limit of lines for one read.
PAGE, MOST_LINES = 10_000, 1_000_000
KEPT_FOR = "1m"
"""Time for which a server keeps a scroll between two responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticsearch:
    """An Elasticsearch or OpenSearch server.

    Attributes:
        indices: Names of indices or data streams; ``*`` is allowed.
        api_key: Encoded key for ``Authorization: ApiKey``; None sends none.
    """

    url: str
    indices: str = DEFAULT_INDICES
    api_key: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Elasticsearch | None":
        """Return the server that the environment names, or None.

        Raises:
            ClusterError: The variable is not an HTTP address.
        """
        url = address_of(environ, URL, "https://elasticsearch.example.com:9200")
        if url is None:
            return None
        indices = environ.get(INDICES) or DEFAULT_INDICES
        return cls(url=url, indices=indices, api_key=environ.get(API_KEY) or None)

    def lines(self, uid: str, since: float, until: float) -> dict[Place, str]:
        """Return the stored output of a run's pods in a time span, by attempt and index, in kubelet's log format.

        Raises:
            ClusterError: The server does not answer, or refuses.
        """
        lines_by_place: defaultdict[Place, list[str]] = defaultdict(list)
        for place, at, text in self._documents(uid, since, until):
            lines_by_place[place].append(f"{at} {text}\n")
        return {place: "".join(lines) for place, lines in lines_by_place.items()}

    def _documents(self, uid: str, since: float, until: float) -> Iterator[tuple[Place, str, str]]:
        moments = {"gte": round(since * 1000), "lte": round(until * 1000) + 1, "format": "epoch_millis"}
        query = {
            "size": PAGE,
            # Lines with the same time are in the order of arrival.
            "sort": [{"@timestamp": {"order": "asc", "unmapped_type": "date"}}, "_doc"],
            # A match rather than a term query, which works for keyword and text fields alike, because a uid is one
            # word.
            # In one format, independent of that in the documents.
            "docvalue_fields": [{"field": "@timestamp", "format": "strict_date_optional_time_nanos"}],
            "query": {"bool": {"filter": [{"match": {RUN_UID: uid}}, {"range": {"@timestamp": moments}}]}},
        }
        path = f"/{urllib.parse.quote(self.indices, safe='*,-_.')}/_search"
        page = self._ask("POST", f"{path}?scroll={KEPT_FOR}&ignore_unavailable=true", query)
        num, scroll = 0, page.get("_scroll_id")
        try:
            while (hits := self._hits(page)) and num < MOST_LINES:
                num += len(hits)
                for hit in hits:
                    source = hit["_source"]
                    if source.get(RUN_UID) == uid:
                        (at,) = hit["fields"]["@timestamp"]
                        yield place_of(source), str(at), str(source.get("log", "")).rstrip("\n")
                if len(hits) < PAGE or scroll is None:
                    return
                page = self._ask("POST", "/_search/scroll", {"scroll": KEPT_FOR, "scroll_id": scroll})
                scroll = page.get("_scroll_id", scroll)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ClusterError(f"Elasticsearch at {self.url} has documents of another form: {error!r}") from error
        finally:
            if scroll is not None:
                with contextlib.suppress(ClusterError):  # the scroll expires after a minute anyway
                    self._ask("DELETE", "/_search/scroll", {"scroll_id": scroll})

    @staticmethod
    def _hits(page: Mapping[str, Any]) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = page["hits"]["hits"]
        return hits

    def _ask(self, method: str, path: str, body: object) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"ApiKey {self.api_key}"
        request = urllib.request.Request(
            f"{self.url}{path}", data=json.dumps(body).encode(), headers=headers, method=method
        )
        content = ask(f"Elasticsearch at {self.url}", request)
        if not isinstance(content, dict):
            raise ClusterError(f"Elasticsearch at {self.url} answers something else than an object")
        return content
