"""PostgreSQL behind the interface of a SQLite connection, as far as the ledger's statements need it.

A transaction is opened with ``BEGIN`` and ended with ``COMMIT`` or ``ROLLBACK``, as in SQLite. Needs the extra
``postgres``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fairlead.cluster.ledger_tables import Rows
from fairlead.errors import ClusterError

# Upper bounds of the wait of an operator's pass, for each statement; also when the server vanishes silently.
CONNECT_S, STATEMENT_S = 5, 10
SILENCE = {
    "tcp_user_timeout": STATEMENT_S * 1000,
    "keepalives_idle": STATEMENT_S,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
SCHEMES = ("postgresql://", "postgres://")
_STRAY = re.compile("%(?![0-9A-Fa-f]{2})")
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[^:,\[\]]*)(:\d*)?(,|$))*")


@lru_cache(maxsize=128)
def translated(sql: str) -> str:
    """Translate a statement of SQLite for PostgreSQL and its driver."""
    if sql == "BEGIN IMMEDIATE":
        return "BEGIN"
    sql = sql.replace("%", "%%").replace("?", "%s")
    sql = re.sub(r"(?<!:):([a-z]+)", r"%(\1)s", sql)
    sql = re.sub(r"\bmin\(", "least(", sql)
    sql = re.sub(r"\bmax\(", "greatest(", sql)
    if sql.lstrip().startswith("CREATE TABLE"):
        sql = sql.replace("INTEGER PRIMARY KEY", "BIGSERIAL PRIMARY KEY").replace("INTEGER", "BIGINT")
        sql = sql.replace(") WITHOUT ROWID", ")")
    return sql


class PostgresDatabase:
    """A connection to PostgreSQL; an instance belongs to one thread.

    Raises:
        ClusterError: The server cannot be reached, or the driver is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise ClusterError(
                "A ledger in PostgreSQL needs psycopg: `pip install 'fairlead[postgres]'` brings it."
            ) from error
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        check_address(url)
        options = f"-c statement_timeout={STATEMENT_S * 1000} -c lock_timeout={STATEMENT_S * 1000}"
        try:
            # Autocommit each statement unless BEGIN opens a transaction, as SQLite does.
            self._db = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=CONNECT_S,
                client_encoding="utf8",
                options=options,
                **SILENCE,  # type: ignore[arg-type]
            )
        except psycopg.Error as error:
            raise ClusterError(f"The ledger's database does not answer: {_first_line(error)}") from error

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows:
        """Execute one statement."""
        values: Any = parameters
        rows: Rows = self._db.execute(translated(sql), values or None)
        return rows

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Execute one statement for each of several rows of parameters."""
        with self._db.cursor() as cursor:
            cursor.executemany(translated(sql), list(parameters))
        return None

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return self._db.info.transaction_status.name != "IDLE"

    def close(self) -> None:
        """Close the connection; uncommitted changes are lost."""
        self._db.close()


def is_postgres(place: str) -> bool:
    """Return whether the place of a ledger is a database server rather than a file."""
    return place.startswith(SCHEMES)


def check_address(url: str) -> None:
    """Refuse a malformed address, for which the driver's error message might show the password.

    Raises:
        ClusterError: The address is malformed; the message repeats none of it.
    """
    authority, _, path = url.partition("?")[0].partition("://")[2].partition("/")
    user, _, hosts = authority.rpartition("@")
    if "@" in user + path or "#" in url or not _HOSTS.fullmatch(hosts) or _STRAY.search(url):
        raise ClusterError(
            "The address of the ledger's database cannot be read: the characters @ / ? # and % of a user or a password "
            "are written as %40 %2F %3F %23 %25. Give postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )


def without_password(url: str) -> str:
    """Return the address of a database with its password masked, for display."""
    return re.sub(r"(//[^:@/]*):[^@/]*@", r"\1:***@", url)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
