"""The guide's configuration of rsyslog sends what pods wrote, with labels from an API server, and it is read."""

import base64
import json
import re
import shutil
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cluster.kubernetes.client.elasticsearch import Elasticsearch
from tests.kubernetes.loopback import serving
from tests.kubernetes.test_elasticsearch import Server
from tests.kubernetes.test_loki import logs_of
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.processes import Server as Process
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]
GUIDE = Path(__file__).parents[2] / "docs" / "logs.md"
PROGRAM = shutil.which("rsyslogd", path="/usr/sbin:/usr/bin")
MODULES = Path("/usr/lib/x86_64-linux-gnu/rsyslog")
LINES = ['1| step 1 loss 0.5 "quoted" \\ back', "1| Grüße 世界", "1! \tat the end"]
# In the place of what it has on a cluster.
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Store(Server):
    """An Elasticsearch that also takes documents, in bulk."""

    def __init__(self) -> None:
        super().__init__([])
        self.indices: set[str] = set()

    def take(self, body: str) -> int:
        lines = [json.loads(line) for line in body.splitlines()]
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            (what,) = action.items()
            assert what[0] == "index"
            assert set(what[1]) == {"_index"}, "a type is refused since version 8"
            self.indices.add(what[1]["_index"])
            at_ms = int(datetime.fromisoformat(source["@timestamp"][:23] + "+00:00").timestamp() * 1000)
            kept = {"_source": {**source, "@timestamp": at_ms}, "fields": {"@timestamp": [source["@timestamp"]]}}
            self.documents.append(kept)
        return len(lines) // 2

    def handler(self) -> type[Any]:
        store, base = self, super().handler()

        class Handler(base, BaseHTTPRequestHandler):  # type: ignore[misc, valid-type]
            def do_POST(self) -> None:
                if self.path != "/_bulk":
                    super().do_POST()
                    return
                num = store.take(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.answer({"errors": False, "items": [{"index": {"status": 201}}] * num})

            def do_HEAD(self) -> None:
                self.answer(None)

            def do_GET(self) -> None:
                self.answer({})

            def answer(self, told: Any) -> None:
                content = b"" if told is None else json.dumps(told).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler


def configuration(place: Path, access: dict[str, Any], port: int) -> Path:
    """Write the guide's file, with the addresses of this test."""
    found = re.search(r"# rsyslog.conf\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    cluster, user = access["clusters"][0]["cluster"], access["users"][0]["user"]
    (place / "token").write_text(user["token"])
    (place / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    text = found[1]
    for there, here in {
        "/var/log/containers": place / "containers",
        "/var/spool/rsyslog": place / "spool",
        "https://kubernetes.default.svc": cluster["server"],
        ACCOUNT: place,
        'server="elasticsearch.example.com" serverport="9200"': f'server="127.0.0.1" serverport="{port}"',
    }.items():
        assert there in text
        text = text.replace(there, str(here))
    path = place / "rsyslog.conf"
    path.write_text(text)
    return path


@pytest.mark.skipif(
    PROGRAM is None or not (MODULES / "mmkubernetes.so").exists() or not (MODULES / "omelasticsearch.so").exists(),
    reason="no rsyslog with its modules: apt-get install rsyslog rsyslog-kubernetes rsyslog-elasticsearch",
)
def test_what_pods_wrote_is_sent_by_rsyslog_and_read_by_fairlead(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    for name in ("containers", "spool"):
        (tmp_path / name).mkdir()
    labels = {"fairlead.dev/run-uid": "u1", "fairlead.dev/attempt": "0", "fairlead.dev/index": "1"}
    pod = {
        "metadata": {"name": "train-0-1", "labels": labels},
        "spec": {
            "nodeName": "none",
            "automountServiceAccountToken": False,
            "containers": [{"name": "ranks", "image": "x"}],
        },
    }
    control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    log = tmp_path / "containers" / f"train-0-1_{namespace}_ranks-{'a' * 64}.log"
    other = tmp_path / "containers" / f"train-0-1_{namespace}_other-{'b' * 64}.log"
    store = Store()
    with serving(store.handler()) as url:
        access = yaml.safe_load(control_plane.kubeconfig().read_text())
        path = configuration(tmp_path, access, int(url.rpartition(":")[2]))
        command = [str(PROGRAM), "-n", "-f", str(path), "-i", str(tmp_path / "pid")]
        process = Process("rsyslog", command, tmp_path / "rsyslog.log")
        said = [f"2026-01-31T12:00:0{number}.00000000{number}Z stdout F {line}\n" for number, line in enumerate(LINES)]
        log.write_text("".join(said[:2]))
        other.write_text(said[0])
        try:
            process.start()
            elasticsearch = Elasticsearch(url=url, api_key="k")
            until(lambda: len(logs_of(elasticsearch)) == 2, lambda: logs_of(elasticsearch))
            with log.open("a") as file:
                file.write(said[2])
            until(lambda: len(logs_of(elasticsearch)) == 3, lambda: logs_of(elasticsearch))
        finally:
            process.kill()
        assert logs_of(elasticsearch) == [f"0/1 {line[3:]}" for line in LINES]
        assert store.indices == {"fairlead-2026-01-31"}
