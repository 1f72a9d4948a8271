"""The databases that a ledger may be in, real ones: a file of SQLite, and PostgreSQL as Debian has it."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from tests.ports import free_port

USER = "nobody"
WAIT_S = 60.0
LOOPBACK = "127.0.0.1"


def postgres_programs() -> Path | None:
    """The folder of the newest PostgreSQL here; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class PostgresServer:
    """A server that may be killed and started again.

    Args:
        folder: An empty one, which becomes the server's.
        address: The only one at which it listens.
        network: The network namespace that has the address; None for this machine's own.
    """

    def __init__(self, folder: Path, *, address: str = LOOPBACK, network: str | None = None) -> None:
        programs = postgres_programs()
        assert programs is not None, "asked for where there is none"
        self._programs, self._folder, self._address = programs, folder, address
        self._inside = [] if network is None else ["nsenter", f"--net=/var/run/netns/{network}"]
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            account = pwd.getpwnam(USER)
            shutil.chown(folder, account.pw_uid, account.pw_gid)
            self._as_user = [
                "setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--",
            ]  # fmt: skip
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        made = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "app", "--auth=trust", "-N"]
        subprocess.run([*self._as_user, *made], check=True, capture_output=True, timeout=WAIT_S * 2, cwd=folder)
        with (folder / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all app samenet trust\nhost all app 10.0.0.0/8 trust\n")

    @property
    def url(self) -> str:
        """The database, empty at first, for whoever is in the same network."""
        return f"postgresql://app@{self._address}:{self._port}/postgres"

    @property
    def own_url(self) -> str:
        """The same by its socket, for this machine, whatever the network."""
        return f"postgresql://app@{quote(str(self._folder), safe='')}:{self._port}/postgres"

    def start(self) -> None:
        """Serve, once whatever is left of a killed one is gone."""
        settings = [f"listen_addresses={self._address}", f"unix_socket_directories={self._folder}", "fsync=off"]
        options = [part for each in settings for part in ("-c", each)]
        argv = [str(self._programs / "postgres"), "-D", str(self._folder / "data"), "-p", str(self._port), *options]
        asked = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder), "-p", str(self._port)]
        deadline = time.monotonic() + WAIT_S
        while True:
            if self._server is None or self._server.poll() is not None:
                # A killed one's children hold its memory for a moment, and another ends at once meanwhile.
                self._server = subprocess.Popen(
                    [*self._inside, *self._as_user, *argv],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self._folder,
                )  # fmt: skip
            if subprocess.run(asked, check=False, timeout=WAIT_S).returncode == 0:
                return
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it with SIGKILL; its children end with it."""
        assert self._server is not None, "it runs"
        self._server.kill()
        self._server.wait(timeout=WAIT_S)

    def stop(self) -> None:
        """End it with all its connections."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            self._server.wait(timeout=WAIT_S)


@contextmanager
def postgres_server(*, address: str = LOOPBACK, network: str | None = None) -> Iterator[PostgresServer]:
    """A server that runs, with an empty database."""
    with TemporaryDirectory(prefix="fairlead-postgres-") as folder:
        server = PostgresServer(Path(folder), address=address, network=network)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """A server with an empty database, as a URL."""
    with postgres_server() as server:
        yield server.url


def emptied(url: str) -> str:
    """The same database without any tables."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url
