"""Paths and modes of the files of the local cluster. Everything is private to the user."""

import contextlib
import os
import shutil
import sys
import zlib
from collections.abc import Collection
from pathlib import Path

from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.machine_mark import check_machine
from fairlead.errors import ClusterError
from fairlead.frozen import dataclass
from fairlead.runtime.paths import below
from fairlead.runtime.private_directory import make_private

# A Unix socket's path may have 107 bytes on Linux and 103 on macOS.
MAX_SOCKET_PATH = 100
# Suffix of directories to be removed; no uid ends with it.
LEFTOVERS = ".gone"
# A file system in main memory, present on every Linux.
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Home:
    """The state directory and the files in it."""

    path: Path

    @classmethod
    def open(cls, path: Path | None = None) -> "Home":
        """Return the home at ``path``, FAIRLEAD_HOME or the user's state directory; create it, mode 0700, if missing.

        Raises:
            ClusterError: It can be neither found nor created, is not writable by this user, or is another machine's.
        """
        path = (_default() if path is None else path).absolute()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                _take_over(path, status)
            check_machine(path)
        except OSError as error:
            raise explained(path, error) from error
        return cls(path)

    @classmethod
    def at(cls) -> "Home":
        """Return the home without creating it, for callers that only read."""
        return cls(_default().absolute())

    @property
    def database(self) -> Path:
        return self.path / "fairlead.db"

    @property
    def reserve(self) -> Path:
        """Return the path of a file that reserves space for ending and deleting runs on a full disk."""
        return self.path / "reserve"

    @property
    def teams(self) -> Path:
        """Return the path of the optional file of Team documents."""
        return self.path / "teams.yaml"

    @property
    def notifications(self) -> Path:
        """Optional file of destinations of notifications."""
        return self.path / "notifications.yaml"

    @property
    def notices(self) -> Path:
        """Notices that are not sent yet, and the last event that was looked at."""
        return self.path / "notices.json"

    @property
    def last_good(self) -> Path:
        """Return the directory with the last good versions of the optional files."""
        return self.path / "last-good"

    @property
    def policy(self) -> Path:
        """Return the path of the optional file that names a policy."""
        return self.path / "policy"

    @property
    def debts(self) -> Path:
        """Return the path of the file with the debts of teams."""
        return self.path / "team-debts.json"

    @property
    def keep(self) -> Path:
        """Return the path of the optional file that limits the retention of finished runs."""
        return self.path / "keep"

    @property
    def catalogue(self) -> Path:
        """Return the path of the optional catalogue of prices of instance types."""
        return self.path / "catalogue.csv"

    @property
    def steps(self) -> Path:
        """Return the path of the file of measured steps of runs."""
        return self.path / "steps.json"

    @property
    def gpus(self) -> Path:
        """Return the path of the results of `fairlead doctor --gpu`."""
        return self.path / "gpus.json"

    @property
    def visible_gpus(self) -> Path:
        """Return the path of the value of CUDA_VISIBLE_DEVICES that holds for all runs; missing if all are visible."""
        return self.path / "visible-gpus"

    @property
    def simulations(self) -> Path:
        """Return the directory of reports of simulations, a file each."""
        return self.path / "simulations"

    @property
    def artefacts(self) -> Path:
        """Return the directory of outputs of pipelines and versions of models, by the hash of their content."""
        return self.path / "artefacts"

    def artefact(self, digest: str) -> Path:
        """Return the path of the content of that hash, existing or not."""
        return below(self.artefacts, digest[:2], digest)

    @property
    def data(self) -> Path:
        """Return the directory of manifests, bundles and copies of data, which all runs share."""
        return self.path / "data"

    @property
    def datasets(self) -> Path:
        """Return the directory of named data sets, a file each."""
        return self.path / "datasets"

    @property
    def secrets(self) -> Path:
        """Return the directory of the secrets of this machine; nothing else may hold their values."""
        return self.path / "secrets"

    @property
    def workspaces(self) -> Path:
        """Return the directory of the homes of workspaces, by team and name; they outlive their workspaces."""
        return self.path / "workspaces"

    def workspace(self, team: str, name: str) -> Path:
        """Return the home of the workspaces of that name, existing or not."""
        return below(self.workspaces, team, name)

    @property
    def packages(self) -> Path:
        """Return the directory of environments of runs, by the hash of their lock and Python."""
        return self.path / "packages"

    @property
    def environment_images(self) -> Path:
        """Return the directory with what is known of images of environments: locks, layers and what was pushed."""
        return self.packages / "images"

    @property
    def registry(self) -> Path:
        """Return the path of the optional file that names the registry of these images."""
        return self.path / "registry.json"

    @property
    def triggers(self) -> Path:
        """Return the directory of triggers that `fairlead apply` stored: two files each, definition and progress."""
        return self.path / "triggers"

    @property
    def serving(self) -> Path:
        """Return the directory in which the gateway and the supervisor exchange data about endpoints."""
        return self.path / "serving"

    @property
    def gateway_proxy(self) -> Path:
        """Return the path of the optional file that names the proxy between the gateway and replicas."""
        return self.path / "gateway-proxy"

    @property
    def access_keys(self) -> Path:
        """Return the path of the hashes of the teams' access keys for endpoints."""
        return self.path / "access-keys.json"

    @property
    def has_triggers(self) -> bool:
        """Return whether any trigger is stored."""
        return self.triggers.is_dir() and any(name.endswith(".json") for name in os.listdir(self.triggers))

    @property
    def lock(self) -> Path:
        """Return the path of the lock that the one supervisor holds as long as it lives."""
        return self.path / "supervisor.lock"

    @staticmethod
    def sign_lock(lock: int, pid: int) -> None:
        """Write the process id of the supervisor into its lock, if there is room."""
        text = str(pid).encode()
        # Overwriting needs no room on a full disk.
        with contextlib.suppress(OSError):
            os.pwrite(lock, text, 0)
            os.ftruncate(lock, len(text))

    @property
    def log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def socket(self) -> Path:
        """Return the path of the socket on which a datagram wakes the supervisor."""
        return self._socket("supervisor")

    @property
    def door_socket(self) -> Path:
        """Return the path of the socket on which the gateway hands over its listening socket."""
        return self._socket("door")

    def _socket(self, name: str) -> Path:
        inside = self.path / f"{name}.sock"
        if len(os.fsencode(inside)) <= MAX_SOCKET_PATH:
            return inside
        # Imported here because it is seldom needed, and a tenth of what every command would load.
        import hashlib

        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return _socket_directory() / f"fairlead-{name}-{digest}.sock"

    @property
    def runs(self) -> Path:
        """Return the directory that holds the files of runs, one subdirectory each."""
        return self.path / "runs"

    def run(self, workload_uid: str) -> Path:
        """Return the directory of a run: its environment, its checkpoints, files that persist across restarts."""
        return self.runs / workload_uid

    def leftovers(self, workload_uid: str) -> Path:
        """Return the directory into which the files of a run are moved before they are removed."""
        return self.runs / f"{workload_uid}{LEFTOVERS}"

    def members(self, uid: str, attempt: int) -> Path:
        """Return the directory in which ranks of an attempt meet that continue in place when one of them is killed."""
        return self.run(uid) / f"members-{attempt}"

    @property
    def memory(self) -> Path:
        """Return the directory in main memory that holds checkpoints of all this user's runs, of any state directory.

        Another user may have created it, so that a writer must check its owner first.
        """
        return SHARED_MEMORY / f"fairlead-{os.geteuid()}"

    def checkpoint_memory(self, uid: str) -> Path:
        """Return the directory of a run's checkpoints in memory; its name encodes the state directory."""
        return self.memory / f"{self._own_mark}{uid}"

    def free_memory(self, active: Collection[str]) -> None:
        """Remove checkpoints in memory of runs of this state directory other than the given ones."""
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
        """Return the directory of a pod, with the files named in the shim's contract."""
        return self.run(workload_uid) / "pods" / pod_uid

    def code(self, workload_uid: str) -> Path:
        """Return the path of the record of a run's stored code, at its submission and each resumption."""
        return self.run(workload_uid) / "code.json"

    def run_key(self, workload_uid: str) -> Path:
        """Return the path of the secret by which the ranks of a run know each other."""
        return self.run(workload_uid) / "key"

    def packages_of(self, workload_uid: str) -> Path:
        """Return the directory of the packages that a run asked for, and of the locks that it got."""
        return self.run(workload_uid) / "packages"

    def environments(self, workload_uid: str) -> Path:
        """Return the path of the environments of the newest attempts: machine, GPUs, Python."""
        return self.run(workload_uid) / "ran.json"

    def environment(self, workload_uid: str) -> Path:
        """Return the path of the submitter's environment, mode 0600, kept while the run may start again."""
        return self.run(workload_uid) / "environment.json"


def _socket_directory() -> Path:
    """Return a directory for sockets with a short path, which only this user can enter.

    Raises:
        ClusterError: There is none, for example because another user has made the one in the temporary directory.
    """
    import tempfile

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    own = Path(tempfile.gettempdir(), f"fairlead-{os.getuid()}")
    for path in (Path(runtime), own) if os.path.isabs(runtime) else (own,):
        try:
            make_private(path)
        except OSError as error:
            problem = error
        else:
            return path
    raise ClusterError(f"{own} cannot hold sockets ({problem.strerror}); set FAIRLEAD_HOME to a shorter path.")


def _take_over(path: Path, status: os.stat_result) -> None:
    """Make an existing directory private, if it is this user's and holds nothing of others.

    Raises:
        ClusterError: It belongs to another user, or has files that are not Fairlead's and that others may read now.
    """
    if status.st_uid != os.geteuid():
        raise ClusterError(
            f"{path} belongs to another user, and the state directory must be yours; set FAIRLEAD_HOME to a directory "
            "of yours."
        )
    if not (path / "fairlead.db").exists() and any(path.iterdir()):
        raise ClusterError(
            f"{path} is open to other users and has files already; the state directory is for you alone, so give "
            f"another, such as FAIRLEAD_HOME={path / 'fairlead'}, or run `chmod 700 {path}`."
        )
    path.chmod(0o700)
    print(f"fairlead: {path} was open to other users; from now on only you can enter it", file=sys.stderr)


def _default() -> Path:
    directory = os.environ.get("FAIRLEAD_HOME")
    if directory:
        if not os.path.isabs(directory):
            raise ClusterError(
                f"FAIRLEAD_HOME is {directory!r}, which is another directory for each working directory; give an "
                f"absolute path, such as {os.path.abspath(directory)}."
            )
        return Path(directory)
    state = os.environ.get("XDG_STATE_HOME")
    if state:
        return Path(state) / "fairlead"
    home = os.path.expanduser("~")
    # Without HOME and a passwd entry the tilde stays; an empty HOME would yield the root directory.
    if not os.path.isabs(home) or os.environ.get("HOME") == "":
        raise ClusterError("There is no home directory to keep state in; set FAIRLEAD_HOME to a directory.")
    return Path(home) / ".local" / "state" / "fairlead"
