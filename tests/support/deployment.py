"""A whole deployment by hand: control plane and pods as processes, on loopback ports, with TLS and S3 where wanted."""

from __future__ import annotations

from pathlib import Path

from podracer_client.client import Client
from podracer_client.connection import Connection
from podracer_client.deployment_secrets import create_secrets
from podracer_core.rpc.tokens import FileToken
from support.services import ServiceProcesses

PROJECT = "default"


class Deployment(ServiceProcesses):
    """Names of processes: leaderboard, orchestrator, and for pod p: p-learner, p-worker0 …, p-evaluator."""

    def __init__(self, folder: Path, store: str, *, tls: bool = False, **common: str) -> None:
        """`common`: further settings of all processes, such as `s3_endpoint`."""
        self.secrets = folder / "secrets"
        create_secrets(self.secrets)
        self._tls = tls
        super().__init__(
            folder, store=store, tokens=str(self.secrets / "tokens"), threads="1", shm_dir=str(folder / "shm"), **common
        )
        (folder / "shm").mkdir(exist_ok=True)
        self._started: dict[str, tuple[str, dict[str, str]]] = {}  # role and settings, by name

    def start(self, role: str, name: str = "", **settings: str) -> None:
        """A process of a role, at the port that it had before where it had one."""
        name = name or role
        self._started[name] = role, settings
        settings = {"listen": self.addresses.get(name, "127.0.0.1:0")} | settings
        if self._tls:
            settings["tls"] = str(self.secrets / "tls" / role)
        self.launch(role, name, **settings)

    def restart(self, name: str) -> None:
        """Start a process that has ended as it was started before."""
        role, settings = self._started[name]
        self.start(role, name, **settings)

    def start_leaderboard(self) -> None:
        self.start("leaderboard", database=f"sqlite:///{self.folder}/leaderboard.db")

    def start_orchestrator(self) -> None:
        self.start(
            "orchestrator",
            database=f"sqlite:///{self.folder}/orchestrator.db",
            leaderboard=self.addresses["leaderboard"],
            lease_term="3s",
            pool="static",
        )

    def start_learner(self, pod: str, **settings: str) -> None:
        """Split where the pod has workers, else fused."""
        workers = [address for name, address in self.addresses.items() if name.startswith(f"{pod}-worker")]
        self.start(
            "learner",
            f"{pod}-learner",
            orchestrator=self.addresses["orchestrator"],
            pod=f"projects/{PROJECT}/pods/{pod}",
            layout="split" if workers else "fused",
            workers=",".join(workers),
            evaluators=self.addresses.get(f"{pod}-evaluator", ""),
            spool_dir=str(self.folder / "spool"),
            **settings,
        )

    def start_split_pod(self, pod: str, workers: int = 1) -> None:
        for index in range(workers):
            self.start("worker", f"{pod}-worker{index}")
        self.start("evaluator", f"{pod}-evaluator")
        self.start_learner(pod)

    def client(self) -> Client:
        """To be closed by the caller."""
        token = FileToken(self.secrets / "tokens" / "client")
        tls = self.secrets / "tls" / "client" if self._tls else None
        return Client(Connection(self.addresses["orchestrator"], self.addresses["leaderboard"], token, tls))
