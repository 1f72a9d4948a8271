"""The runtime as one zip file for Python 3.9 or newer, and the ConfigMap that mounts it in pods.

The same sources give the same bytes, so the file's name can contain a hash of its content. See the decision note on how
the runtime gets into a pod.

See decision 6.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fairlead.runtime
from fairlead.cluster.kubernetes import names

FILE = "runtime.pyz"
MOST_BYTES = 1024 * 1024  # the size limit of a ConfigMap
_MAIN = "from fairlead.runtime.inpod import main\n\nmain()\n"
# Modules of the package itself that programs or the runtime import.
_BESIDE = (
    "__init__.py", "errors.py", "huggingface.py", "lightgbm.py", "lightning.py", "untrusted_json.py", "xgboost.py",
)  # fmt: skip
# Programs that run on no cluster so far, which would fill the ConfigMap: of kinds, and what one machine alone has.
_ELSEWHERE = frozenset(
    ("federation", "workspace", "launcher.py", "forking.py", "preloading.py", "leftovers.py")
)  # fmt: skip
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def bundle() -> bytes:
    """Return the runtime as a zip archive with a ``__main__``; ``fairlead`` can also be imported from it."""
    package = Path(fairlead.runtime.__file__).parent
    root = package.parent
    files = {"__main__.py": _MAIN.encode()}
    files |= {f"fairlead/{name}": (root / name).read_bytes() for name in _BESIDE}
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] not in _ELSEWHERE:
            files[f"fairlead/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return archived(files)


def archived(files: Mapping[str, bytes]) -> bytes:
    """Pack files by their names into a zip archive, with the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=_EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def bundle_name() -> str:
    """Return the name of the ConfigMap, which changes with the content."""
    return name_of(bundle(), "runtime")


def render_bundle(namespace: str) -> dict[str, Any]:
    """Render the ConfigMap with the runtime; it is never updated, as its name identifies its content."""
    return render_archive(bundle(), "runtime", FILE, namespace)


def name_of(archive: bytes, what: str) -> str:
    """Return the name of an archive's ConfigMap, from its kind and a hash of its content."""
    return f"fairlead-{what}-{hashlib.sha256(archive).hexdigest()[:12]}"


def render_archive(archive: bytes, what: str, file: str, namespace: str) -> dict[str, Any]:
    """Render the ConfigMap that contains an archive as a file of that name."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of(archive, what),
            "namespace": namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.CONTENT: what},
        },
        "immutable": True,
        "binaryData": {file: base64.b64encode(archive).decode()},
    }
