"""The secret of a run, which its pods share, and the tokens of its ports that follow from it.

Any user of a machine, and with some networks any pod of a cluster, can connect to a port at which the ranks of a run
find each other. A rank proves that it belongs there by a token, which is different for each attempt and port. The key
is in a file of mode 0600, on Kubernetes in a Secret of the run from which its pods write that file; no command line, no
variable of a rank and no status has it. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import contextlib
import os

from fairlead.errors import RuntimeFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = "FAIRLEAD_KEY_FILE"
"""Variable of the ranks with the path of the key's file."""
SECRET = "FAIRLEAD_KEY"
"""Variable of a container with the key itself, which its ranks do not get."""
KEY_BYTES = 32
TOKEN_BYTES = 32


def create(path: str | os.PathLike[str]) -> None:
    """Write a new key, unless there is one already; a kill at any time leaves a whole key or none.

    Raises:
        OSError: The file cannot be written.
    """
    if not os.path.exists(path):
        write(path, new_key())


def new_key() -> str:
    return os.urandom(KEY_BYTES).hex()


def write(path: str | os.PathLike[str], key: str) -> None:
    """Write a key that is known, unless there is one already.

    Raises:
        OSError: The file cannot be written.
    """
    made = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(key)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        os.unlink(made)


def token(path: str | None, run_uid: str, attempt: int | str, port: str) -> bytes:
    """Return the token of an attempt of a run for one of its ports, by the port's name.

    Args:
        path: The key's file, as ``FAIRLEAD_KEY_FILE`` names it; None if that is not set.

    Raises:
        RuntimeFault: There is no key.
    """
    import hmac  # not above: most ranks need no token, and OpenSSL takes milliseconds

    if not path:
        raise RuntimeFault(f"{FILE} is not set, by which the ranks of a run know each other; start them with Fairlead")
    try:
        with open(path) as file:
            key = file.read(4 * KEY_BYTES).strip()
    except (OSError, ValueError) as error:
        raise RuntimeFault(f"the run's key, by which its ranks know each other, cannot be read: {error}") from error
    if len(key) < 2 * KEY_BYTES:
        raise RuntimeFault(f"{path} holds no key of a run, by which its ranks know each other")
    return hmac.new(key.encode(), f"{run_uid}/{attempt}/{port}".encode(), "sha256").digest()


def token_here(environ: Mapping[str, str], port: str) -> bytes:
    """Return the token of the attempt that this process belongs to, for one of its ports.

    Raises:
        RuntimeFault: There is no key.
    """
    uid, attempt = environ.get("FAIRLEAD_RUN_UID", ""), environ.get("FAIRLEAD_ATTEMPT", "")
    return token(environ.get(FILE), uid, attempt, port)
