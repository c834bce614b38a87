"""The URL of a database, checked, and an engine for it with the settings that make a commit
durable."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from podracer_core.errors import DataCorrupted, FieldViolation, InvalidInput, Unavailable
from podracer_platform.rpc.address import Address

EXPECTED = "sqlite:////absolute/path or postgresql://user@host/database"
_NO_TLS = (
    "the server is on another machine, and libpq's default neither requires TLS nor verifies the "
    "server: add ?sslmode=verify-full&sslrootcert=FILE, or the sslmode that you want"
)
BUSY_TIMEOUT_S = 10.0

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # in WAL mode anything less may forget acknowledged commits when the power fails
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}",
)

_IDLE_IN_TRANSACTION = "25P03"
_SERVER_AWAY = {"connect_timeout": 10, "tcp_user_timeout": 30_000, "keepalives_idle": 30}


def parse_url(text: str) -> URL:
    """The URL with the driver that this package uses. Raises InvalidInput for a URL of any other
    form, and for one that leaves it to libpq whether a connection to another machine is safe."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise _invalid(text, f"expected {EXPECTED}") from error
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:":
            return URL.create("sqlite", database=str(Path(url.database).absolute()))
        case "sqlite":
            raise _invalid(
                text,
                "a database in memory forgets everything: give a file, sqlite:////absolute/path",
            )
        case "postgresql" | "postgres":
            if importlib.util.find_spec("psycopg") is None:
                raise _invalid(
                    text, "PostgreSQL needs the driver psycopg: pip install 'psycopg[binary]'"
                )
            hosts = [
                url.host or "",
                *url.normalized_query.get("host", ()),
                *url.normalized_query.get("hostaddr", ()),
            ]
            remote = [
                host
                for host in hosts
                if host and not host.startswith("/") and not Address(host=host).is_local
            ]
            if remote and not (
                url.query.keys() & {"sslmode", "service"} or "PGSSLMODE" in os.environ
            ):
                raise _invalid(text, _NO_TLS)
            return url.set(drivername="postgresql+psycopg")
    raise _invalid(text, f"expected {EXPECTED}")


def prepare_file(path: Path) -> None:
    """Create the folder and an empty file (mode 0600: it may hold secrets) if they do not exist.

    Raises InvalidInput with the path if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> InvalidInput:
    """The error for a database file or folder that cannot be written."""
    reason = "not a folder" if isinstance(error, FileExistsError) else error.strerror
    problem = f"the database {path} cannot be written: {error.filename}: {reason}"
    return InvalidInput(problem, field="database", reason="DATABASE_UNWRITABLE", path=path)


def make_engine(url: URL, idle_s: float = 15.0) -> Engine:
    """An engine with durable commits, in which every transaction sees one snapshot.

    PostgreSQL ends a transaction whose process is silent for `idle_s`, which releases the locks of
    a lost node."""
    if url.get_backend_name() != "sqlite":
        # Connections that died with the server are noticed; none waits for ever for a server that
        # is out of reach.
        options = (
            f"{url.query.get('options', '')} -c "
            f"idle_in_transaction_session_timeout={int(idle_s * 1000)}"
        )
        arguments = _SERVER_AWAY | {"options": options.strip()}
        return create_engine(
            url, isolation_level="REPEATABLE READ", pool_pre_ping=True, connect_args=arguments
        )
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in _PRAGMAS:
            cursor.execute(pragma)
        cursor.close()

    # Without an explicit BEGIN the driver starts a transaction only before the first write: reads
    # would not be of one snapshot, and a killed migration would leave half a schema behind.
    @event.listens_for(engine, "begin")
    def begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN")  # type: ignore[attr-defined]

    return engine


@contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Raise a failure of the disk or the server as Unavailable, and a damaged file as
    DataCorrupted."""
    name = url.render_as_string(hide_password=True)
    try:
        yield
    except DBAPIError as error:
        text = " ".join(str(error.orig).split())  # one line of a log
        was_silent = getattr(error.orig, "sqlstate", "") == _IDLE_IN_TRANSACTION
        if was_silent or isinstance(error, OperationalError | InterfaceError):
            raise Unavailable(
                f"the database {name} cannot be used now: {text}",
                reason="DATABASE_UNAVAILABLE",
                database=name,
            ) from error
        if "not a database" in text or "malformed" in text:
            raise DataCorrupted(
                f"{name}: {text}", reason="DATABASE_CORRUPTED", database=name
            ) from error
        raise


def _invalid(text: str, problem: str) -> InvalidInput:
    # The URL itself may hold a password: the message must not repeat it.
    return InvalidInput(
        f"database URL {text.split(':', 1)[0]}:…: {problem}",
        reason="INVALID_DATABASE_URL",
        violations=[FieldViolation("database", problem)],
    )
