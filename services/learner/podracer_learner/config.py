"""Settings of a learner."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from podracer_core.box import landlock_version
from podracer_core.config import ByteSize, Seconds
from podracer_platform.rpc import parse_address
from podracer_platform.service import PodSettings


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(PodSettings):
    """
    orchestrator     address of the orchestrator
    pod              resource name of this pod: `projects/p/pods/x`. Unset: projects/default/pods/
                     and this host's name
    store            URL of the object store
    layout           split: workers collect and evaluators evaluate; fused: this process does both
    workers          their addresses; required for the split layout. A host name means all its
                     addresses, and is resolved again every few seconds
    max_workers      the most workers with a part of the environments, others are spares; 0: all
    collect_ahead    rollouts that are collected ahead of training, by workers or on a GPU; auto:
                     measured
    evaluators       addresses; required for the split layout
    allow_user_code  fused: start a user's own environments from this process, if Landlock keeps
                     them from its secrets
    own_user_code    likewise, without that condition: the code is this user's own (`podracer run`
                     sets it)
    device           to train on: cpu, cuda, cuda:0, or auto: a GPU if there is one and the
                     environment supports it
    cpu_products     factors of matrix products on a CPU: float32, or bf16 where that is faster
                     (processors with AMX); sums are float32
    peer_patience    how long to wait for a lost worker, and for an evaluator whose answer is
                     required
    spool_dir        folder for checkpoints on their way to an object store that is not a folder
                     itself. Unset: one of this user's in the folder for temporary files
    spool_size       its size limit
    store_patience   how long to wait for an unavailable store that is required
    """

    orchestrator: str
    store: str
    pod: str = ""
    layout: Literal["split", "fused"] = "fused"
    workers: tuple[str, ...] = ()
    max_workers: int = 0
    collect_ahead: Literal["auto", "0", "1", "2"] = "auto"
    evaluators: tuple[str, ...] = ()
    allow_user_code: bool = False
    own_user_code: bool = False
    device: str = "auto"
    cpu_products: Literal["float32", "bf16"] = "float32"
    peer_patience: Seconds = 60.0
    spool_dir: Path | None = None
    spool_size: ByteSize = 8 << 30
    store_patience: Seconds = 300.0

    def spool_folder(self) -> Path:
        """The parent of folders for checkpoints on their way to the store."""
        return self.spool_dir or Path(tempfile.gettempdir(), f"podracer_spool-{os.geteuid()}")

    def pod_name(self) -> str:
        """This pod's resource name."""
        host = re.sub(r"[^-_.A-Za-z0-9]", "-", socket.gethostname()).strip("-_.")[:128]
        return self.pod or f"projects/default/pods/{host or 'pod'}"

    def reachable_address(self, bound: str) -> str:
        """The address at which others reach a server that is bound to `bound`."""
        address = parse_address(self.advertise or bound)
        return str(replace(address, host=socket.gethostname()) if address.is_wildcard else address)

    @property
    def runs_user_code(self) -> bool:
        """Whether this pod may start users' own environments."""
        return (
            self.layout == "split"
            or self.own_user_code
            or (self.allow_user_code and landlock_version() > 0)
        )

    @property
    def ahead(self) -> int | None:
        """`collect_ahead` as a number; None for auto."""
        return None if self.collect_ahead == "auto" else int(self.collect_ahead)
