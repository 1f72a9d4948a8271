"""A model in an object store is a directory of this machine for its predictor."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlead.runtime.checkpoint.manifest import MANIFEST, FileFacts, Manifest
from fairlead.runtime.serving.model_files import fetched_model
from fairlead.runtime.serving.predictor import Unusable
from tests.serving.replica import Replica

WEIGHTS = b"2.5"


class Reading:
    """Tells what its model holds."""

    def load(self, model: str) -> None:
        self.weight = float(Path(model, "rank-00000", "weights").read_text())

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"] * np.float32(self.weight)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    facts = {"rank-00000/weights": FileFacts(size=len(WEIGHTS), sha256=hashlib.sha256(WEIGHTS).hexdigest())}
    manifest = Manifest(step=3, world_size=1, run="r", attempt=0, created_at=0.0, files=facts)
    (tmp_path / "store" / "rank-00000").mkdir(parents=True)
    (tmp_path / "store" / "rank-00000" / "weights").write_bytes(WEIGHTS)
    (tmp_path / "store" / MANIFEST).write_bytes(manifest.to_json())
    return tmp_path / "store"


def test_a_predictor_is_given_the_files_of_a_checkpoint_in_a_store(place: Path, tmp_path: Path) -> None:
    found = Path(fetched_model(f"local://{place}", str(tmp_path)))
    assert found != place
    assert (found / "rank-00000" / "weights").read_bytes() == WEIGHTS
    assert fetched_model(str(place), str(tmp_path)) == str(place)
    with Replica(f"{__name__}:Reading", model=f"local://{place}") as replica:
        answer = replica.infer({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [2.0]})
        assert answer.json()["outputs"][0]["data"] == [5.0]


def test_one_object_is_a_file(place: Path, tmp_path: Path) -> None:
    found = Path(fetched_model(f"local://{place}/rank-00000/weights", str(tmp_path)))
    assert (found.name, found.read_bytes()) == ("weights", WEIGHTS)


def test_what_is_damaged_or_not_there_is_not_served(place: Path, tmp_path: Path) -> None:
    (place / "rank-00000" / "weights").write_text("2.6")
    with pytest.raises(Unusable, match=r"the model local://.* cannot be fetched: rank-00000/weights"):
        fetched_model(f"local://{place}", str(tmp_path))
    with pytest.raises(Unusable, match=r"cannot be fetched: .*nothing is there"):
        fetched_model(f"local://{tmp_path / 'none'}", str(tmp_path))
    with Replica(f"{__name__}:Reading", wait=False, model=f"local://{place}") as replica:
        assert replica.end() != 0
