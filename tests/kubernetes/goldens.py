"""Golden files: what a function makes, as text that is read and reviewed as a diff."""

import os
from pathlib import Path
from typing import Any

from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml

GOLDEN = Path(__file__).parent / "golden"


def check_golden(name: str, objects: list[dict[str, Any]]) -> None:
    """The objects are those of the file; with FAIRLEAD_UPDATE_GOLDEN=1 the file is written first."""
    path, text = GOLDEN / name, to_yaml(objects)
    if os.environ.get("FAIRLEAD_UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; FAIRLEAD_UPDATE_GOLDEN=1 writes it anew"
