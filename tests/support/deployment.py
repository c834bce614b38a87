"""A whole deployment by hand: control plane and pods as processes, on loopback ports, with TLS and
S3 where wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from podracer_client.jobs.client import Client
from podracer_client.secrets.deployment import create_secrets
from podracer_client.servers.connection import Connection
from podracer_platform.rpc.tokens import FileToken
from support.link import Link
from support.services import ServiceProcesses

PROJECT = "default"


class Deployment(ServiceProcesses):
    """Names of processes: leaderboard, orchestrator, and for pod p: p-learner, p-worker0 …,
    p-evaluator.

    links   the connections between them that can be cut, by `<caller> to <called>`
    """

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        tls: bool = False,
        databases: Mapping[str, str] | None = None,
        collect: bool = False,
        **common: str,
    ) -> None:
        """`databases`: URLs of those of the orchestrator and the leaderboard, else SQLite files in
        `folder`; `collect`: what nothing needs is deleted within seconds; `common`: further
        settings of all processes, as `s3_endpoint`."""
        self.databases = dict(databases or {})
        for role in ("orchestrator", "leaderboard"):
            self.databases.setdefault(role, f"sqlite:///{folder}/{role}.db")
        self._collect = {"collect_after": "3s", "collect_every": "2s"} if collect else {}
        self.links: dict[str, Link] = {}
        self.secrets = folder / "secrets"
        create_secrets(self.secrets)
        self.has_tls = tls
        super().__init__(
            folder,
            store=store,
            tokens=str(self.secrets / "tokens"),
            threads="1",
            shm_dir=str(folder / "shm"),
            **common,
        )
        (folder / "shm").mkdir(exist_ok=True)
        self._started: dict[str, tuple[str, dict[str, str]]] = {}  # role and settings, by name

    def start(self, role: str, name: str = "", **settings: str) -> None:
        """A process of a role, at the port that it had before where it had one."""
        name = name or role
        self._started[name] = role, settings
        settings = {"listen": self.addresses.get(name, "127.0.0.1:0")} | settings
        if self.has_tls:
            settings["tls"] = str(self.secrets / "tls" / role)
        if role in ("worker", "evaluator") and not settings["listen"].startswith("unix:"):
            link = self.links.get(f"learner to {name}") or Link()
            self.links[f"learner to {name}"] = link
            # what learners show there names the address
            self.launch(role, name, advertise=link.address, **settings)
            link.lead_to(self.addresses[name])
        else:
            self.launch(role, name, **settings)

    def restart(self, name: str) -> None:
        """Start a process that has ended as it was started before."""
        role, settings = self._started[name]
        self.start(role, name, **settings)

    def start_leaderboard(self) -> None:
        self.start("leaderboard", database=self.databases["leaderboard"], instance="leaderboard")

    def start_orchestrator(self) -> None:
        self.start(
            "orchestrator",
            database=self.databases["orchestrator"],
            instance="orchestrator",
            leaderboard=self._link("orchestrator to leaderboard", self.addresses["leaderboard"]),
            lease_term="3s",
            pool="static",
            **self._collect,
        )

    def start_learner(self, pod: str, **settings: str) -> None:
        """Split where the pod has workers, else fused."""
        workers = [
            self._link(f"learner to {name}", address)
            for name, address in self.addresses.items()
            if name.startswith(f"{pod}-worker")
        ]
        evaluator = self.addresses.get(f"{pod}-evaluator", "")
        if "s3_endpoint" in self.common:
            host = self.common["s3_endpoint"].removeprefix("http://")
            settings["s3_endpoint"] = f"http://{self._link(f'learner {pod} to store', host)}"
        self.start(
            "learner",
            f"{pod}-learner",
            orchestrator=self._link(
                f"learner {pod} to orchestrator", self.addresses["orchestrator"]
            ),
            pod=f"projects/{PROJECT}/pods/{pod}",
            layout="split" if workers else "fused",
            workers=",".join(workers),
            evaluators=evaluator and self._link(f"learner to {pod}-evaluator", evaluator),
            spool_dir=str(self.folder / "spool"),
            **settings,
        )

    def start_split_pod(self, pod: str, workers: int = 1) -> None:
        for index in range(workers):
            self.start("worker", f"{pod}-worker{index}")
        self.start("evaluator", f"{pod}-evaluator")
        self.start_learner(pod)

    def end_processes(self) -> None:
        """Kill all that are left."""
        super().end_processes()
        for link in self.links.values():
            link.close()

    def _link(self, name: str, address: str) -> str:
        """Where an address is reached by a connection that can be cut."""
        if address.startswith("unix:"):
            return address
        if name not in self.links:
            self.links[name] = Link(address)
        return self.links[name].address

    def client(self) -> Client:
        """To be closed by the caller."""
        token = FileToken(self.secrets / "tokens" / "client")
        tls = self.secrets / "tls" / "client" if self.has_tls else None
        return Client(
            Connection(self.addresses["orchestrator"], self.addresses["leaderboard"], token, tls)
        )
