"""Data of runs in pods: claims as volumes, the environment of the reader, and what is refused at submission."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.control.data import admit_data
from fairlead.errors import Conflict, InvalidSpec
from fairlead.specs.data import DataMode, DataSource
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
    for data, nodes in (({"train": cached}, 1), ({"train": copied}, 2), ({}, 2)):
        _, env = pod_of(data, nodes=nodes)
        assert "FAIRLEAD_DATA_PEERS" not in env


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
