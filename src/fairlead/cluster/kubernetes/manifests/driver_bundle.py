"""The driver of pipelines as one zip file beside the runtime, and the ConfigMap that mounts it in drivers' pods.

It needs only Python 3.11 or newer. The package imported is the runtime's; this file adds the modules that only drivers
need, and the package that reads `.gitignore` files, which exclude files from a step's code.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import fairlead.specs
from fairlead.cluster.kubernetes.manifests.runtime_bundle import archived, name_of, render_archive
from fairlead.specs.gang import ProgramSpec
from fairlead.specs.pipeline import WATCH_VARIABLE
from fairlead.specs.workload import PIPELINE_VARIABLE

FILE = "driver.pyz"
_MAIN = """\
import sys

if sys.version_info < (3, 11):
    sys.exit(f"fairlead: pipelines need an image with Python 3.11 or newer; this one has {sys.version.split()[0]}")
import fairlead

fairlead.__path__.append(f"{sys.argv[0]}/fairlead")
from fairlead.control.pipelines.in_pod import main

sys.exit(main())
"""
_FOLDERS = ("specs", "text")
_FILES = (
    "deferred.py", "frozen.py",
    "cluster/__init__.py", "cluster/local/__init__.py", "cluster/local/dataset_files.py",
    "cluster/project_files.py", "cluster/secret_files.py",
    "control/__init__.py", "control/data.py", "control/pipelines/__init__.py",
    "control/pipelines/artefacts.py", "control/pipelines/dependencies.py", "control/pipelines/drift.py",
    "control/pipelines/drift_watch.py", "control/pipelines/driver.py",
    "control/pipelines/in_pod.py", "control/pipelines/journal.py", "control/pipelines/object_place.py",
    "control/pipelines/pod_children.py", "control/pipelines/processes.py", "control/pipelines/result_files.py",
    "control/pipelines/result_store.py", "control/pipelines/step_run.py", "control/pipelines/task_lines.py",
    "control/pipelines/watched.py",
    "policy/__init__.py", "policy/kinds/__init__.py", "policy/kinds/staleness.py", "policy/kinds/steps.py",
)  # fmt: skip


def is_driver(spec: ProgramSpec) -> bool:
    """Return whether a run executes a pipeline, or watches data for one."""
    return PIPELINE_VARIABLE in spec.env or is_watch(spec)


def is_watch(spec: ProgramSpec) -> bool:
    """Return whether a run watches data for a pipeline."""
    return WATCH_VARIABLE in spec.env


@cache
def bundle() -> bytes:
    """Return the driver as a zip archive with a ``__main__``."""
    root, ignores = Path(fairlead.specs.__file__).parent.parent, _reader_of_ignore_files()
    paths = [root / name for name in _FILES]
    for folder in _FOLDERS:
        paths += sorted((root / folder).rglob("*.py"))
    files = {f"fairlead/{path.relative_to(root).as_posix()}": path for path in paths}
    files |= {path.relative_to(ignores.parent).as_posix(): path for path in sorted(ignores.rglob("*.py"))}
    content = {name: path.read_bytes() for name, path in files.items()}
    return archived({"__main__.py": _MAIN.encode(), **content})


def _reader_of_ignore_files() -> Path:
    """Return the directory of the package pathspec, found without importing it, which takes 0.1 s of CPU time."""
    module = importlib.util.find_spec("pathspec")
    assert module is not None, "Fairlead requires it"
    assert module.origin is not None, "it is a package with files"
    return Path(module.origin).parent


@cache
def bundle_name() -> str:
    """Return the name of the ConfigMap, which changes with the content."""
    return name_of(bundle(), "driver")


def render_bundle(namespace: str) -> dict[str, Any]:
    """Render the ConfigMap with the driver; it is never updated, as its name identifies its content."""
    return render_archive(bundle(), "driver", FILE, namespace)
