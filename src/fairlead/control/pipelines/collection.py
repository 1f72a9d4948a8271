"""Removes outputs of steps that are no longer referenced.

Outputs of existing runs, content that their specs name, model versions, and results that the cache may reuse count as
references. Drivers and creators of versions hold a lock between finding or storing content and recording a reference
to it; nothing is removed while it is held.
"""

import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.space import used_bytes
from fairlead.cluster.records import dump
from fairlead.control.pipelines import journal
from fairlead.control.pipelines.artefacts import REMOVED, Artefacts
from fairlead.control.pipelines.results import Results
from fairlead.control.pipelines.step_run import COLLECTED
from fairlead.frozen import dataclass
from fairlead.policy.kinds.retention import Retention
from fairlead.specs.formats.serialization import to_json

_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The removed content; with ``dry_run``, the content that would be removed.

    Attributes:
        digests: Hashes of the content.
        num_results: Number of deleted results, whose steps run again when next requested.
    """

    digests: tuple[str, ...]
    num_bytes: int
    num_results: int


def collect(
    cluster: LocalCluster, keep: Retention, now: float, *, without: frozenset[str] = frozenset(), dry_run: bool = False
) -> Collected:
    """Remove unreferenced outputs.

    Args:
        keep: Retention of results by age, or by number per task; ``KEEP_ALL`` keeps all.
        now: Unix time.
        without: Uids of runs that are about to be removed.
        dry_run: Report only, remove nothing.

    Raises:
        Conflict: The store stays in use.
        ClusterError: Something cannot be read or removed.
    """
    root = cluster.home.artefacts
    try:
        store = Artefacts(root)
        with store.alone():
            results = Results(root / "results.db")
            try:
                remaining, gone = results.divided(keep, now)
                needed = remaining | _needed_by_runs(cluster, without)
                needed |= {version.digest for version in cluster.models()}
                left = sorted(path for path in root.glob("[0-9a-f][0-9a-f]/*") if path.name not in needed)
                num_bytes = sum(_size(path) for path in left)
                if not dry_run:
                    results.forget(gone)
                    _put_aside(left, root / REMOVED)
                    store.forget(path.name for path in left)
            finally:
                results.close()
        if not dry_run:
            shutil.rmtree(root / REMOVED, ignore_errors=True)
    except OSError as error:
        raise explained(cluster.home.path, error) from error
    return Collected(digests=tuple(path.name for path in left), num_bytes=num_bytes, num_results=len(gone))


def _needed_by_runs(cluster: LocalCluster, without: frozenset[str]) -> set[str]:
    """Return every hash in the spec, the state or the journal of an existing run, or in a triggered pipeline.

    The state of an endpoint contains the specs to which it may roll back.
    """
    digests: set[str] = set()
    for path in cluster.home.triggers.glob("*.json"):
        with suppress(FileNotFoundError):
            digests.update(_DIGEST.findall(path.read_text()))
    for workload in cluster.workloads():
        if workload.uid in without:
            continue
        digests.update(_DIGEST.findall(to_json(workload.spec)))
        digests.update(_DIGEST.findall(dump(workload.status)))
        files = cluster.home.run(workload.uid) / "files"
        # The outputs of a child are recorded in its directory before the journal.
        for path in (files / journal.NAME, *files.glob(f"steps/*/{COLLECTED}")):
            with suppress(FileNotFoundError):
                digests.update(_DIGEST.findall(path.read_text()))
    return digests


def _put_aside(paths: Iterable[Path], place: Path) -> None:
    """Move content out of the store by renames; the next collection removes what a killed process leaves."""
    place.mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        target = place / path.name
        if target.exists():  # left by a killed process
            shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
        path.rename(target)


def _size(path: Path) -> int:
    return used_bytes(path) if path.is_dir() else path.lstat().st_size
