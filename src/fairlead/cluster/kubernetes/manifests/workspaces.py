"""The objects of a workspace beside its pod: the claim of its home, and its process as a zip file beside the runtime.

The claim has no owner, so that it outlives the workspace and even its object; `fairlead workspace delete-home` removes
it. See decision 256.
"""

from functools import cache
from pathlib import Path
from typing import Any

import fairlead.runtime.workspace
from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.manifests.runtime_bundle import archived, name_of, render_archive
from fairlead.specs.workspace import Workspace

FILE = "workspace.pyz"
HOME_VOLUME = "fairlead-home"
DEFAULT_SIZE_BYTES = 10 * 1024**3
_MAIN = """\
import os
import sys

# The user's command starts it without the variables of the ranks, and an image may have another Fairlead.
sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "runtime.pyz"))

import fairlead.runtime

fairlead.runtime.__path__.insert(0, f"{sys.argv[0]}/fairlead/runtime")
if len(sys.argv) == 3 and sys.argv[1] == "address":
    from fairlead.runtime.workspace.remote_address import main

    sys.exit(main(sys.argv[2]))
from fairlead.runtime.workspace.__main__ import main

main()
"""


def claim_name(workspace: str) -> str:
    """Return the name of the claim with the home of the workspaces of a name in their namespace."""
    return f"{HOME_VOLUME}-{workspace}"


def render_claim(spec: Workspace) -> dict[str, Any]:
    """Render the claim. It is created once, and later specs of that name find it as it is."""
    size = spec.home.size_bytes or DEFAULT_SIZE_BYTES
    of_class = {} if spec.home.storage_class is None else {"storageClassName": spec.home.storage_class}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(spec.name),
            "namespace": spec.team,
            "labels": {names.MANAGED_BY: names.MANAGER, names.CONTENT: "home"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(size)}},
            **of_class,
        },
    }


@cache
def bundle() -> bytes:
    """Return the process of workspaces as a zip archive with a ``__main__``; it imports the runtime beside it."""
    package = Path(fairlead.runtime.workspace.__path__[0])
    files = {f"fairlead/runtime/workspace/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    return archived({"__main__.py": _MAIN.encode(), **files})


@cache
def bundle_name() -> str:
    """Return the name of the ConfigMap, which changes with the content."""
    return name_of(bundle(), "workspace")


def render_bundle(namespace: str) -> dict[str, Any]:
    """Render the ConfigMap with the process; it is never updated, as its name identifies its content."""
    return render_archive(bundle(), "workspace", FILE, namespace)
