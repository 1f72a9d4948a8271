"""Where the local cluster keeps its files, and their modes. Everything is private to the user."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS.
MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory and the files in it."""

    path: Path

    @classmethod
    def open(cls, path: Path | None = None) -> "Home":
        """``path``, or FAIRLEAD_HOME, or the user's state directory; made with mode 0700 when it is missing."""
        if path is None:
            given = os.environ.get("FAIRLEAD_HOME")
            state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
            path = Path(given) if given else Path(state) / "fairlead"
        path = path.absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
        return cls(path)

    @property
    def database(self) -> Path:
        return self.path / "fairlead.db"

    @property
    def lock(self) -> Path:
        """Held by the one supervisor for as long as it lives."""
        return self.path / "supervisor.lock"

    @property
    def log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def socket(self) -> Path:
        """Where a datagram wakes the supervisor."""
        inside = self.path / "supervisor.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"fairlead-{os.getuid()}-{digest}.sock"

    def run(self, workload_uid: str) -> Path:
        """Files of a run: its environment, its checkpoints, what is kept across restarts."""
        return self.path / "runs" / workload_uid

    def pod(self, workload_uid: str, pod_uid: str) -> Path:
        """Files of a pod, as the shim's contract names them."""
        return self.run(workload_uid) / "pods" / pod_uid

    def environment(self, workload_uid: str) -> Path:
        """The submitter's environment, mode 0600, kept while the run may start again."""
        return self.run(workload_uid) / "environment.json"
