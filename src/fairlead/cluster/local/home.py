"""The files of the local cluster, and their modes. Everything is private to the user."""

import contextlib
import os
import shutil
import zlib
from collections.abc import Collection
from pathlib import Path

from fairlead.errors import ClusterError
from fairlead.frozen import dataclass

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS.
MAX_SOCKET_PATH = 100
# No uid ends like this.
LEFTOVERS = ".gone"
# A file system in main memory, which Linux has everywhere.
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory and the files in it."""

    path: Path

    @classmethod
    def open(cls, path: Path | None = None) -> "Home":
        """``path``, or FAIRLEAD_HOME, or the user's state directory; made with mode 0700 when it is missing.

        Raises:
            ClusterError: It can be neither found nor made, or is not this user's to write.
        """
        path = (_default() if path is None else path).absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_mode & 0o077:
                path.chmod(0o700)
        except OSError as error:
            # Here and not above: its words are seldom needed.
            from fairlead.cluster.local.disk_errors import explained

            raise explained(path, error) from error
        return cls(path)

    @classmethod
    def at(cls) -> "Home":
        """Return the same without making it, for who only reads what may be there."""
        return cls(_default().absolute())

    @property
    def database(self) -> Path:
        return self.path / "fairlead.db"

    @property
    def reserve(self) -> Path:
        """Room that is kept for ending and deleting runs on a full disk."""
        return self.path / "reserve"

    @property
    def teams(self) -> Path:
        """Team documents that somebody may put there."""
        return self.path / "teams.yaml"

    @property
    def policy(self) -> Path:
        """The name of a policy that somebody may put there."""
        return self.path / "policy"

    @property
    def keep(self) -> Path:
        """Read what is kept of runs that are over, if somebody says so there."""
        return self.path / "keep"

    @property
    def catalogue(self) -> Path:
        """Prices of instance types that somebody gave."""
        return self.path / "catalogue.csv"

    @property
    def steps(self) -> Path:
        """The steps of runs that were measured."""
        return self.path / "steps.json"

    @property
    def gpus(self) -> Path:
        """Return the file of what `fairlead doctor --gpu` measured."""
        return self.path / "gpus.json"

    @property
    def artefacts(self) -> Path:
        """Outputs of pipelines and versions of models, by the hash of their content."""
        return self.path / "artefacts"

    def artefact(self, digest: str) -> Path:
        """Return the path of the content of that hash, whether it is there or not."""
        return self.artefacts / digest[:2] / digest

    @property
    def triggers(self) -> Path:
        """Return the directory of what `fairlead apply` has taken: two files each, what it is and how far it is."""
        return self.path / "triggers"

    @property
    def serving(self) -> Path:
        """Return the directory in which the gateway and the supervisor tell each other of endpoints."""
        return self.path / "serving"

    @property
    def gateway_proxy(self) -> Path:
        """Return the file that names the program which takes requests to replicas, if somebody chose one."""
        return self.path / "gateway-proxy"

    @property
    def access_keys(self) -> Path:
        """Hashes of the keys by which teams may ask endpoints."""
        return self.path / "access-keys.json"

    @property
    def has_triggers(self) -> bool:
        """Return whether anything is to be run by itself."""
        return self.triggers.is_dir() and any(name.endswith(".json") for name in os.listdir(self.triggers))

    @property
    def lock(self) -> Path:
        """Held by the one supervisor for as long as it lives."""
        return self.path / "supervisor.lock"

    @staticmethod
    def sign_lock(lock: int, pid: int) -> None:
        """Write whose the supervisor's lock is, if there is room."""
        text = str(pid).encode()
        # Over what is there, which needs no room on a full disk.
        with contextlib.suppress(OSError):
            os.pwrite(lock, text, 0)
            os.ftruncate(lock, len(text))

    @property
    def log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def socket(self) -> Path:
        """Return the socket where a datagram wakes the supervisor."""
        return self._socket("supervisor")

    @property
    def door_socket(self) -> Path:
        """Return the socket where the gateway hands on the one that it listens on."""
        return self._socket("door")

    def _socket(self, name: str) -> Path:
        inside = self.path / f"{name}.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
            return inside
        # Here and not above: seldom needed, and a tenth of what every command would load.
        import hashlib
        import tempfile

        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        middle = "" if name == "supervisor" else f"{name}-"
        return Path(tempfile.gettempdir()) / f"fairlead-{middle}{os.getuid()}-{digest}.sock"

    @property
    def runs(self) -> Path:
        """Return the directory of what is kept of runs beside the database, a directory each."""
        return self.path / "runs"

    def run(self, workload_uid: str) -> Path:
        """Files of a run: its environment, its checkpoints, what is kept across restarts."""
        return self.runs / workload_uid

    def leftovers(self, workload_uid: str) -> Path:
        """Return the directory into which the files of a run are moved before they are removed."""
        return self.runs / f"{workload_uid}{LEFTOVERS}"

    def members(self, uid: str, attempt: int) -> Path:
        """Return where the ranks of a start meet that go on in place when one is killed."""
        return self.run(uid) / f"members-{attempt}"

    @property
    def memory(self) -> Path:
        """Return the directory in main memory that holds checkpoints of all this user's runs, of any state directory.

        Another user may have made it: whoever writes there looks first.
        """
        return SHARED_MEMORY / f"fairlead-{os.geteuid()}"

    def checkpoint_memory(self, uid: str) -> Path:
        """Return where the nodes of a run hold checkpoints in memory; its name tells the state directory too."""
        return self.memory / f"{self._own_mark}{uid}"

    def free_memory(self, active: Collection[str]) -> None:
        """Remove what runs of this state directory hold in memory that are not among the given."""
        try:
            names = os.listdir(self.memory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(self._own_mark) and name.removeprefix(self._own_mark) not in active:
                shutil.rmtree(self.memory / name, ignore_errors=True)

    @property
    def _own_mark(self) -> str:
        return f"{zlib.crc32(os.fsencode(self.path)):08x}-"

    def pod(self, workload_uid: str, pod_uid: str) -> Path:
        """Files of a pod, as the shim's contract names them."""
        return self.run(workload_uid) / "pods" / pod_uid

    def code(self, workload_uid: str) -> Path:
        """Return the directory of what was kept of the run's code at its submission and each resumption."""
        return self.run(workload_uid) / "code.json"

    def environments(self, workload_uid: str) -> Path:
        """Return the file of what the newest attempts ran with: machine, GPUs, Python."""
        return self.run(workload_uid) / "ran.json"

    def environment(self, workload_uid: str) -> Path:
        """The submitter's environment, mode 0600, kept while the run may start again."""
        return self.run(workload_uid) / "environment.json"


def _default() -> Path:
    given = os.environ.get("FAIRLEAD_HOME")
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "fairlead"
    home = os.path.expanduser("~")
    # Without HOME and such a user it stays as it is; an empty HOME would make it the root directory.
    if not os.path.isabs(home) or os.environ.get("HOME") == "":
        raise ClusterError("There is no home directory to keep state in; set FAIRLEAD_HOME to a directory.")
    return Path(home) / ".local" / "state" / "fairlead"
