"""A fake of NVIDIA's MIG manager and device plugin on fake nodes, by the labels that they publish.

It takes the layout of a node from ``nvidia.com/mig.config``, says ``pending`` in ``nvidia.com/mig.config.state``, has
the node offer the devices of that layout and no others, and says ``success``; or ``failed``, with the devices as they
were. What it has done it knows from the node, so that it may end and be started again at any time.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tests.kubernetes.testcluster.control_plane import ControlPlane

CONFIG, STATE, DONE = "nvidia.com/mig.config", "nvidia.com/mig.config.state", "fake/mig-config"
EVERY_S = 0.2


class MigManager:
    """The managers of some nodes with one GPU each.

    Args:
        layouts: Devices of a node by resource name, for each layout.
    """

    def __init__(self, plane: ControlPlane, nodes: list[str], layouts: Mapping[str, Mapping[str, int]]) -> None:
        self._plane = plane
        self._nodes = nodes
        self._layouts = layouts
        self.fails: set[str] = set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """In this block it does what it finds."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(EVERY_S):
                for name in self._nodes:
                    # Whoever else writes a node at the same time, or a slow server, is met again at the next look.
                    with suppress(OSError):
                        self._look(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=30)
            assert not thread.is_alive()

    def _look(self, name: str) -> None:
        path = f"/api/v1/nodes/{name}"
        metadata = self._plane.request("GET", path)["metadata"]
        wanted, done = metadata["labels"].get(CONFIG), (metadata.get("annotations") or {}).get(DONE)
        if wanted is None or (wanted == done and metadata["labels"].get(STATE) != "pending"):
            return
        self._write(path, {"metadata": {"labels": {STATE: "pending"}}})
        if wanted not in self.fails:
            offers: dict[str, str | None] = {each: None for known in self._layouts.values() for each in known}
            offers |= {each: str(number) for each, number in self._layouts[wanted].items()}
            self._write(f"{path}/status", {"status": {"capacity": offers, "allocatable": offers}})
        said = "failed" if wanted in self.fails else "success"
        self._write(path, {"metadata": {"labels": {STATE: said}, "annotations": {DONE: wanted}}})

    def _write(self, path: str, patch: dict[str, Any]) -> None:
        self._plane.request("PATCH", path, patch, kind="merge-patch+json")
