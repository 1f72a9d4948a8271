"""Where metrics are answered over HTTP, and what else is asked there."""

import socket
import threading
import urllib.error
import urllib.request

import pytest

from fairlead.control.metrics.server import metrics_server
from fairlead.errors import ClusterError
from tests.metrics.world import World


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_of_either_family_answers(host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    answers = iter([World().readings(), World().readings(), ClusterError("no database")])

    def read() -> object:
        found = next(answers)
        if isinstance(found, ClusterError):
            raise found
        return found

    with metrics_server(read, host, 0) as server:  # type: ignore[arg-type]  # readings, or the error
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            name = f"[{host}]" if ":" in host else host
            url = f"http://{name}:{server.server_address[1]}"
            for path in ("/metrics", "/metrics?name[]=x"):
                with urllib.request.urlopen(url + path, timeout=20) as answer:
                    assert b"fairlead_loop_running" in answer.read(), path
            for path, status in {"/": 404, "/metrics/x": 404, "/metrics": 503}.items():
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(url + path, timeout=20)
                assert refused.value.code == status, path
                refused.value.close()
        finally:
            server.shutdown()
            thread.join(20)


def test_a_name_that_a_site_leads_here_is_refused() -> None:
    with metrics_server(lambda: World().readings(), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/metrics"
            for host, is_right in {"localhost:9": True, "127.0.0.1": True, "rebound.example": False}.items():
                request = urllib.request.Request(url, headers={"Host": host})
                if is_right:
                    with urllib.request.urlopen(request, timeout=20) as answer:
                        assert answer.status == 200
                else:
                    with pytest.raises(urllib.error.HTTPError, match="421"):
                        urllib.request.urlopen(request, timeout=20)
        finally:
            server.shutdown()
            thread.join(20)
