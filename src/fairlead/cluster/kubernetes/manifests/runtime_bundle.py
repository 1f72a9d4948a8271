"""The runtime as one file that any Python from 3.9 on runs, and the ConfigMap that takes it into pods.

The file is the same for the same sources, byte for byte, so its name can say what is in it. See the decision note on
the way of the runtime into a pod.
"""

import base64
import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster.kubernetes import names

FILE = "runtime.pyz"
MOST_BYTES = 1024 * 1024  # of all a ConfigMap holds
_MAIN = "from fairlead.runtime.inpod import main\n\nmain()\n"
# What programs import of the package itself.
_BESIDE = ("__init__.py", "errors.py", "huggingface.py", "lightgbm.py", "lightning.py", "xgboost.py")
EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def bundle() -> bytes:
    """The runtime as a zip archive with a ``__main__``; also a place to import ``fairlead`` from."""
    package = Path(fairlead.runtime.__file__).parent
    root = package.parent
    files = {"__main__.py": _MAIN.encode()}
    files |= {f"fairlead/{name}": (root / name).read_bytes() for name in _BESIDE}
    for path in sorted(package.rglob("*.py")):
        files[f"fairlead/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def bundle_name() -> str:
    """The name of the ConfigMap, which changes with the content."""
    return f"fairlead-runtime-{hashlib.sha256(bundle()).hexdigest()[:12]}"


def render_bundle(namespace: str) -> dict[str, Any]:
    """The ConfigMap that holds the runtime; never changed, as its name stands for its content."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": bundle_name(),
            "namespace": namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.CONTENT: "runtime"},
        },
        "immutable": True,
        "binaryData": {FILE: base64.b64encode(bundle()).decode()},
    }
