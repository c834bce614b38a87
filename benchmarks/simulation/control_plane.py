"""A real orchestrator and a real leaderboard, each a process on loopback, for pods that come by
themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from simulation import counted_service
from sqlalchemy import create_engine, make_url, text

from podracer_client.jobs.client import Client
from podracer_client.local.services import inherited_environment
from podracer_client.processes.process import ManagedProcess, ProcessPlan
from podracer_client.servers.connection import Connection
from podracer_platform.rpc.tokens import FileToken, Role, create_tokens

_COUNTED = Path(__file__).with_name("counted_service.py")
_READY_S = 60.0
_STOP_S = 3.0
LEASE_TERM_S = 60.0
"""Six times the default: skipped time must not bring terms to their end when the machine is busy
with other things."""


class ControlPlane:
    """While open: both processes, with a folder store and SQLite below `folder`, or databases of a
    PostgreSQL server.

    `postgresql` is the URL of one of its databases, in which others can be made.
    """

    def __init__(
        self, folder: Path, postgresql: str = "", lease_term_s: float = LEASE_TERM_S
    ) -> None:
        self._postgresql = postgresql
        self._lease_term_s = lease_term_s
        self.store_url = (folder / "objects").as_uri()
        self._folder = folder
        self.tokens = folder / "tokens"
        self._tokens = create_tokens(self.tokens)
        self._processes: dict[str, ManagedProcess] = {}

    def __enter__(self) -> Self:
        leaderboard = self._start("leaderboard", {})
        settings = {
            "PODRACER_STORE": self.store_url,
            "PODRACER_LEADERBOARD": leaderboard,
            "PODRACER_POOL": "static",
            "PODRACER_LEASE_TERM": str(self._lease_term_s),
        }
        self.orchestrator = self._start("orchestrator", settings)
        self.client = Client(
            Connection(self.orchestrator, leaderboard, FileToken(self._tokens[Role.CLIENT]))
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.close()
        for name in ("orchestrator", "leaderboard"):
            self._processes[name].stop(_STOP_S)

    @property
    def pod_token(self) -> FileToken:
        return FileToken(self._tokens[Role.POD])

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        times = {
            name: psutil.Process(process.pid).cpu_times()
            for name, process in self._processes.items()
        }
        return {name: found.user + found.system for name, found in times.items()}

    @property
    def memory_mb(self) -> dict[str, float]:
        """Resident memory of each process now."""
        return {
            name: psutil.Process(process.pid).memory_info().rss / 1e6
            for name, process in self._processes.items()
        }

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Statements and transactions of each process's database, and calls of the leaderboard, so
        far."""
        return {
            name: counted_service.read(self._folder / f"{name}.counts") for name in self._processes
        }

    def _database(self, name: str) -> str:
        """The URL of a new database."""
        if not self._postgresql:
            return f"sqlite:///{self._folder / name}.sqlite"
        url = make_url(self._postgresql)
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS bench_{name}"))
            connection.execute(text(f"CREATE DATABASE bench_{name}"))
        engine.dispose()
        return url.set(database=f"bench_{name}").render_as_string(hide_password=False)

    def _start(self, name: str, settings: dict[str, str]) -> str:
        """Its address, once it serves."""
        environment = {
            **inherited_environment(),
            "PODRACER_LISTEN": "127.0.0.1:0",
            "PODRACER_TOKENS": str(self._folder / "tokens"),
            "PODRACER_DATABASE": self._database(name),
            **settings,
        }
        command = (sys.executable, str(_COUNTED), name, str(self._folder / f"{name}.counts"))
        plan = ProcessPlan(
            name, command, environment, self._folder / "logs" / f"{name}.log", restarts=0
        )
        process = self._processes[name] = ManagedProcess(plan)
        process.start()
        return process.wait_ready(_READY_S)
