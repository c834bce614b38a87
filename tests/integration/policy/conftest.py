"""A policy server as a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from podracer_client import PolicyClient
from podracer_client.secrets import create_secrets
from podracer_core.checkpoint import Checkpoint, save_checkpoint
from podracer_core.storage import FolderStore
from support.policies import random_policy
from support.services import ServiceProcesses

BOX = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
CHOICE = gymnasium.spaces.Discrete(4)


def torque_policy(seed: int) -> Checkpoint:
    return random_policy("ppo", BOX, TORQUE, seed)


class Site(ServiceProcesses):
    """`checkpoint` writes one to a folder; `client` of a role, with TLS where the site has it."""

    def __init__(self, folder: Path, tls: bool = False) -> None:
        self.secrets = folder / "secrets"
        create_secrets(self.secrets)
        self._tls = tls
        common = {"tokens": str(self.secrets / "tokens"), "listen": "127.0.0.1:0", "threads": "1"}
        if tls:
            common["tls"] = str(self.secrets / "tls" / "policy")
        super().__init__(folder, **common)

    def checkpoint(self, name: str, checkpoint: Checkpoint) -> Path:
        folder = self.folder / name
        save_checkpoint(FolderStore(folder), "p/", checkpoint.groups, checkpoint.metadata)
        return folder / "p"

    def serve(self, **settings: str) -> None:
        listen = {"listen": self.addresses["policy"]} if "policy" in self.addresses else {}
        self.common |= listen
        self.launch("policy", "policy", **settings)

    def client(self, role: str = "client") -> PolicyClient:
        """To be closed by the caller."""
        tls = self.secrets / "tls" / "client" if self._tls else None
        return PolicyClient(
            self.addresses["policy"], token_file=self.secrets / "tokens" / role, tls=tls
        )


@pytest.fixture
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="policy-") as folder:
        made = Site(Path(folder))
        yield made
        made.end_processes()


@pytest.fixture
def tls_site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="policy-") as folder:
        made = Site(Path(folder), tls=True)
        yield made
        made.end_processes()
