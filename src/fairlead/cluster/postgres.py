"""PostgreSQL behind the interface of a SQLite connection, as far as the ledger's statements need it.

A transaction is opened with ``BEGIN`` and ended with ``COMMIT`` or ``ROLLBACK``, as there. Needs the extra
``postgres``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from fairlead.cluster.ledger_tables import Rows
from fairlead.errors import ClusterError

# A pass of the operator waits for no longer than this, each time.
CONNECT_S, STATEMENT_S = 5, 10
SCHEMES = ("postgresql://", "postgres://")


@lru_cache(maxsize=128)
def translated(sql: str) -> str:
    """Return a statement of SQLite as PostgreSQL and its driver take it."""
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
    """A connection; an instance belongs to one thread.

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
        options = f"-c statement_timeout={STATEMENT_S * 1000} -c lock_timeout={STATEMENT_S * 1000}"
        try:
            # Each statement by itself, unless BEGIN says otherwise, as SQLite has it.
            self._db = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_S, options=options)
        except psycopg.Error as error:
            raise ClusterError(f"The ledger's database does not answer: {_first_line(error)}") from error

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows:
        """Carry out one statement."""
        given: Any = parameters
        rows: Rows = self._db.execute(translated(sql), given or None)
        return rows

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> object:
        """Carry out one statement with each of several values."""
        with self._db.cursor() as cursor:
            cursor.executemany(translated(sql), list(parameters))
        return None

    @property
    def in_transaction(self) -> bool:
        """Tell whether a transaction is open."""
        return self._db.info.transaction_status.name != "IDLE"

    def close(self) -> None:
        """End the connection; what was not committed is gone."""
        self._db.close()


def is_postgres(place: str) -> bool:
    """Tell whether a place of a ledger is a database server and not a file."""
    return place.startswith(SCHEMES)


def without_password(url: str) -> str:
    """Return an address of a database as it may be shown."""
    return re.sub(r"(//[^:@/]*):[^@/]*@", r"\1:***@", url)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
