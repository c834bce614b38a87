"""What may happen to a deployment while it trains. Each fault does its damage, and mends it after a
while."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.deployment import Deployment
from support.postgresql import PostgresServer
from support.s3_server import S3Server

Act = Callable[[random.Random], None]


@dataclass
class Fault:
    """One kind of fault of one kind of process. `tries` and `survived` are what the report says."""

    name: str
    act: Act
    tries: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)


class Faults:
    """All that can be done to a deployment with these servers."""

    def __init__(
        self,
        deployment: Deployment,
        s3: S3Server,
        database: PostgresServer | None,
        disk: Path | None,
    ) -> None:
        """`database`: where the control plane's is in a server; `disk`: a small one of its own with
        its files."""
        self._deployment = deployment
        self.all = [
            Fault(f"{verb} {kind}", self._on(kind, act))
            for kind in ("learner", "worker", "evaluator", "orchestrator", "leaderboard")
            for verb, act in (
                ("kill -9", self._kill),
                ("freeze", self._freeze),
                ("SIGTERM", self._terminate),
            )
        ]
        self.all += [
            Fault("kill -9 object store", _restarting(s3.stop, s3.start)),
            Fault("freeze object store", _freezing(s3)),
        ]
        self.all += [
            Fault(f"cut {kind}", self._cutting(kind))
            for kind in (
                "orchestrator to leaderboard",
                "learner to orchestrator",
                "learner to worker",
                "learner to store",
            )
        ]
        if database is not None:
            self.all.append(Fault("kill -9 database", _restarting(database.kill, database.start)))
            self.all.append(Fault("freeze database", _freezing(database)))
        if disk is not None:
            self.all.append(Fault("databases' disk full", _filling(disk)))

    def _cutting(self, kind: str) -> Act:
        """Cut all connections of a kind, for longer than a lease's term now and then."""
        caller, _, called = kind.partition(" to ")

        def act(chance: random.Random) -> None:
            ends = {name: name.partition(" to ") for name in self._deployment.links}
            links = [
                self._deployment.links[name]
                for name, (first, _, second) in sorted(ends.items())
                if first.startswith(caller) and second.rpartition("-")[2].startswith(called)
            ]
            link = chance.choice(links)
            link.cut()
            time.sleep(chance.uniform(0.5, 6.0))
            link.mend()

        return act

    def _on(self, kind: str, act: Callable[[str, random.Random], None]) -> Act:
        def on_one_of_them(chance: random.Random) -> None:
            names = [
                name
                for name in self._deployment.processes
                if name.rpartition("-")[2].startswith(kind)
            ]
            act(chance.choice(sorted(names)), chance)

        return on_one_of_them

    def _kill(self, name: str, chance: random.Random) -> None:
        self._deployment.kill(name)
        self._deployment.processes[name].wait(60)
        time.sleep(chance.uniform(0.0, 3.0))
        self._deployment.restart(name)

    def _freeze(self, name: str, chance: random.Random) -> None:
        """Longer than a lease's term now and then: then it is a zombie when it wakes up."""
        self._deployment.kill(name, signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, 6.0))
        self._deployment.kill(name, signal.SIGCONT)

    def _terminate(self, name: str, chance: random.Random) -> None:
        self._deployment.kill(name, signal.SIGTERM)
        self._deployment.processes[name].wait(60)
        time.sleep(chance.uniform(0.0, 1.0))
        self._deployment.restart(name)


def _restarting(stop: Callable[[], None], start: Callable[[], None]) -> Act:
    def act(chance: random.Random) -> None:
        stop()
        time.sleep(chance.uniform(0.2, 4.0))
        start()

    return act


def _freezing(server: S3Server | PostgresServer) -> Act:
    def act(chance: random.Random) -> None:
        server.freeze()
        time.sleep(chance.uniform(0.5, 6.0))
        server.thaw()

    return act


def _filling(disk: Path) -> Act:
    def act(chance: random.Random) -> None:
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        time.sleep(chance.uniform(1.0, 5.0))
        filler.unlink()

    return act
