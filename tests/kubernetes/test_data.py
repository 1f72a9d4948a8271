"""Data of runs in pods: claims as volumes, the environment of the reader, and what is refused at submission."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.endpoint_weights import render_weights_key, render_weights_service
from fairlead.cluster.kubernetes.manifests.network_policies import render_run_policy
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.control.data import admit_data
from fairlead.errors import Conflict, InvalidSpec
from fairlead.runtime.inpod import set_up
from fairlead.specs.data import DataMode, DataSource
from fairlead.specs.serving import Serving
from tests.builders import training
from tests.kubernetes.builders import SETTINGS, a_creation, a_workload


def pod_of(data: dict[str, DataSource], **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod of a run with this data, and the variables of its ranks."""
    pod = render_pod(a_workload(training(data=data, **fields)), a_creation(), SETTINGS)
    (told,) = (one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == "FAIRLEAD_INSTRUCTIONS")
    return pod["spec"], json.loads(told)["env"]


def test_a_claim_is_mounted_read_only_unless_it_is_written_to() -> None:
    spec, env = pod_of(
        {
            "tokens": DataSource(origin="pvc://tokens/2026/a"),
            "scratch": DataSource(origin="pvc://tokens", at="/scratch", write=True),
        }
    )
    (volume,) = (volume for volume in spec["volumes"] if "persistentVolumeClaim" in volume)
    assert volume["persistentVolumeClaim"] == {"claimName": "tokens"}
    mounts = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]]
    assert mounts == [
        {"name": volume["name"], "mountPath": "/data/tokens", "subPath": "2026/a", "readOnly": True},
        {"name": volume["name"], "mountPath": "/scratch"},
    ]
    assert env["FAIRLEAD_DATA_TOKENS"] == "/data/tokens"
    assert json.loads(env["FAIRLEAD_DATA"])["tokens"] == {"from": "/data/tokens", "mode": "mount"}


def test_pods_get_the_url_and_the_version_of_a_store_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-the-submitter")
    source = DataSource(origin="s3://bucket/a", version="0123456789abcdef", credentials="reader")
    spec, env = pod_of({"train": source})
    assert json.loads(env["FAIRLEAD_DATA"])["train"] == {
        "from": "s3://bucket/a", "mode": "cache", "version": "0123456789abcdef",
        "credentials": "/fairlead/secrets/reader",
    }  # fmt: skip
    assert "a-secret-of-the-submitter" not in json.dumps([spec, env])


def test_pods_of_a_run_with_several_nodes_know_where_to_read_from_each_other() -> None:
    cached, copied = DataSource(origin="s3://bucket/a"), DataSource(origin="s3://bucket/a", mode=DataMode.COPY)
    _, env = pod_of({"train": cached}, nodes=2)
    assert env["FAIRLEAD_DATA_PEERS"] == f"{env['MASTER_ADDR'].replace('-0.', '-{}.')}:29499"
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "2")
    assert "FAIRLEAD_DATA_PEERS" in pod_of({"train": copied}, nodes=2)[1]
    streamed = replace(cached, mode=DataMode.STREAM)
    for data, nodes in (({"train": cached}, 1), ({"train": streamed}, 2), ({}, 2)):
        _, env = pod_of(data, nodes=nodes)
        assert "FAIRLEAD_DATA_PEERS" not in env


def test_replicas_of_an_endpoint_read_weights_from_each_other_with_a_key_of_their_own() -> None:
    weights = DataSource(origin="s3://bucket/weights", mode=DataMode.COPY, credentials="reader")
    endpoint = Serving(name="chat", team="research", run="serve", data={"weights": weights})
    uid = "99999999-2222-4333-8444-555555555555"
    replica = a_workload(replace(endpoint.replica(), name="chat-r1-1"), parent=uid)
    pod = render_pod(replica, a_creation(), SETTINGS)
    (ranks,) = pod["spec"]["containers"]
    variables = {variable["name"]: variable for variable in ranks["env"]}
    env = json.loads(variables["FAIRLEAD_INSTRUCTIONS"]["value"])["env"]
    assert env["FAIRLEAD_DATA_PEERS"] == "weights-chat-999999.research.svc:29499"
    assert env["FAIRLEAD_DATA_WEIGHTS"] == "/fairlead/local/data/copies/weights"
    key = variables["FAIRLEAD_KEY"]["valueFrom"]["secretKeyRef"]
    secret, service = render_weights_key(replica, "a key"), render_weights_service(replica)
    assert (key["name"], secret["metadata"]["namespace"]) == (secret["metadata"]["name"], "research")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert [owner["uid"] for owner in service["metadata"]["ownerReferences"]] == [uid]
    policy = render_run_policy(replica)
    at_port = [{"port": 29499, "protocol": "TCP"}]
    for direction in ("ingress", "egress"):
        assert at_port in [rule.get("ports") for rule in policy["spec"][direction]]
    alone = render_run_policy(replace(replica, spec=replace(replica.spec, data={})))
    assert at_port not in [rule.get("ports") for rule in alone["spec"]["ingress"]]


def test_copies_are_made_before_the_program_of_a_pod_starts() -> None:
    described = {"weights": {"from": "s3://bucket/a", "mode": "copy"}}
    copying = f"'{sys.executable}' -m fairlead.runtime.data.copying"
    env = {"FAIRLEAD_DATA": json.dumps(described)}
    assert set_up(None, env) == copying
    assert set_up("make", env) == f"{copying}\nmake"
    assert set_up("make", {}) == "make"
    assert "needs Python 3.11 in the image, which has 3.9" in str(set_up("make", env, (3, 9)))


@pytest.mark.parametrize(
    ("source", "in_pods", "message"),
    [
        (DataSource(origin="files"), True, "is a path of this machine, which pods do not have"),
        (DataSource(origin="pvc://claim"), False, "is a claim of Kubernetes, and the local cluster has none"),
    ],
)
def test_what_a_cluster_cannot_give_is_refused_with_what_to_give(
    source: DataSource, in_pods: bool, message: str, tmp_path: Path
) -> None:
    with pytest.raises(Conflict, match=message):
        admit_data(
            training(data={"train": source}), tmp_path, in_pods=in_pods, directory=tmp_path / "data", secrets=tmp_path
        )


def test_a_submission_records_the_version_and_refuses_another(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.bin").write_bytes(b"a")
    spec = training(data={"train": DataSource(origin="files", mode=DataMode.CACHE)})
    admitted = admit_data(spec, tmp_path, in_pods=False, directory=tmp_path / "data", secrets=tmp_path)
    source = admitted.data["train"]
    assert source.origin == str(tmp_path / "files")
    assert admitted.notes == (f"data.train: version {source.version}, 1 object, 1e-09 GB",)
    (tmp_path / "files" / "a.bin").write_bytes(b"other")
    with pytest.raises(InvalidSpec, match=f"and not {source.version}, which was asked for"):
        admit_data(
            training(data=dict(admitted.data)), tmp_path, in_pods=False, directory=tmp_path / "data", secrets=tmp_path
        )
    with pytest.raises(InvalidSpec, match="there is no directory"):
        admit_data(
            training(data={"train": DataSource(origin="absent")}),
            tmp_path,
            in_pods=False,
            directory=tmp_path / "data",
            secrets=tmp_path,
        )
