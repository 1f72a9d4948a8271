"""The databases that a ledger may be in, real ones: a file of SQLite, and PostgreSQL as Debian has it."""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.ports import free_port

USER = "nobody"
WAIT_S = 30.0


def postgres_programs() -> Path | None:
    """The folder of the newest PostgreSQL here; None where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgres() -> Iterator[str]:
    """A server with an empty database, as a URL."""
    programs = postgres_programs()
    assert programs is not None, "asked for where there is none"
    as_user: dict[str, Any] = {}
    with TemporaryDirectory(prefix="fairlead-postgres-") as folder:
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            account = pwd.getpwnam(USER)
            shutil.chown(folder, account.pw_uid, account.pw_gid)
            as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data, port = Path(folder, "data"), free_port()
        made = [str(programs / "initdb"), "-D", str(data), "-U", "app", "--auth=trust", "-N"]
        subprocess.run(made, check=True, capture_output=True, timeout=WAIT_S * 4, cwd=folder, **as_user)
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off"]
        options = [part for each in settings for part in ("-c", each)]
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", str(data), "-p", str(port), *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **as_user,
        )  # fmt: skip
        try:
            asked = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            deadline = time.monotonic() + WAIT_S
            while subprocess.run(asked, check=False, timeout=WAIT_S).returncode:
                assert server.poll() is None, "PostgreSQL ended"
                assert time.monotonic() < deadline, "PostgreSQL does not answer"
                time.sleep(0.05)
            yield f"postgresql://app@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(timeout=WAIT_S)


def emptied(url: str) -> str:
    """The same database without any tables."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url
