"""Settings of the orchestrator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from podracer_core.config import Seconds
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.service.process import ControlSettings

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9._]*")
_LEAST = {
    "max_pods": 1,
    "pool_max_pending": 1,
    "keep_last": 1,
    "keep_best": 0,
    "collect_after": 0,
    "collect_every": 1,
}
_MOST = 1_000_000_000  # seconds, thirty years


@dataclass(frozen=True, kw_only=True)
class OrchestratorConfig(ControlSettings):
    """
    store           URL of the object store: `file:///absolute/path`, `s3://bucket/prefix`
    leaderboard     address of the leaderboard
    lease_term      how long a lease lives without renewal; unset: 120 s in a cluster, which reports
                    dead pods itself, else 10 s
    pool            the pool of pods: `local` starts processes here, `kubernetes` has a cluster
                    start them, `static` uses pods that are started elsewhere
    state_dir       the local pool's logs go to `logs` below it, users' code and data to `cache`
    run_dir         short private folder for the local pool's unix sockets
    max_pods        pods that the pool makes at most, whatever else there is room for
    pool_max_pending  pods of the kubernetes pool that may wait for a place at once; without a limit
                      in a queue of Kueue
    pool_name       of the kubernetes pool, in the label podracer.dev/pool of its Jobs; another for
                    each orchestrator of a namespace
    pod_template    name of the PodTemplate of the kubernetes pool's pods, in its namespace
    pod_profiles    file that says where pods of the kubernetes pool may run
                    (`pool/kubernetes/profiles`); unset: jobs cannot choose
    gpu_resource    what a GPU is called in the cluster
    kubeconfig      where the cluster is, for an orchestrator outside of it; unset: the one that
                    this process runs in
    kueue_queue     local queue of Kueue that admits the kubernetes pool's pods; unset: they start
                    at once
    quotas          file that says how much each project may have (`jobs/quotas`); unset: no limits
    keep_last       newest checkpoints of each living agent that stay, whatever else does
    keep_best       best checkpoints of each job that stay, whatever else does
    collect_after   how long nothing is deleted that was written
    collect_every   how often what nothing needs is deleted
    """

    store: str
    leaderboard: str
    lease_term: Seconds | None = None
    pool: Literal["local", "static", "kubernetes"] = "static"
    state_dir: Path | None = None
    run_dir: Path | None = None
    max_pods: int = 64
    pool_max_pending: int = 100
    pool_name: str = "podracer"
    pod_template: str = "podracer-pod-template"
    pod_profiles: Path | None = None
    gpu_resource: str = "nvidia.com/gpu"
    kubeconfig: Path | None = None
    kueue_queue: str = ""
    quotas: Path | None = None
    keep_last: int = 2
    keep_best: int = 8
    collect_after: Seconds = 3600.0
    collect_every: Seconds = 600.0

    @property
    def lease_term_s(self) -> float:
        """How long a lease lives without renewal."""
        if self.lease_term is not None:
            return self.lease_term
        return 120.0 if self.pool == "kubernetes" else 10.0

    def __post_init__(self) -> None:
        """Raises InvalidInput where settings do not go together."""
        violations = []
        if not 0.5 <= self.lease_term_s <= 3600.0:
            found = f"is {self.lease_term_s:g} s, expected 0.5 s to 1 h"
            violations.append(FieldViolation("PODRACER_LEASE_TERM", found))
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                found = f"is {getattr(self, name):g}, expected {least} or more"
                violations.append(FieldViolation(f"PODRACER_{name.upper()}", found))
            elif getattr(self, name) > _MOST:
                violations.append(
                    FieldViolation(f"PODRACER_{name.upper()}", f"is more than {_MOST:,}")
                )
        if self.pool == "local":
            missing = [name for name in ("state_dir", "run_dir") if getattr(self, name) is None]
            violations += [
                FieldViolation(f"PODRACER_{name.upper()}", "the local pool needs it")
                for name in missing
            ]
        if self.pod_profiles is not None and self.pool != "kubernetes":
            violations.append(
                FieldViolation("PODRACER_POD_PROFILES", "expected PODRACER_POOL=kubernetes with it")
            )
        if not _RESOURCE.fullmatch(self.gpu_resource):
            found = (
                f"is {self.gpu_resource!r}, expected a name such as nvidia.com/gpu or amd.com/gpu"
            )
            violations.append(FieldViolation("PODRACER_GPU_RESOURCE", found))
        for name in ("pool_name", "pod_template", "kueue_queue"):
            if not _LABEL.fullmatch(getattr(self, name)) and (
                getattr(self, name) or name != "kueue_queue"
            ):
                found = (
                    f"is {getattr(self, name)!r}, expected lower-case letters, digits and "
                    "'-', at most 50"
                )
                violations.append(FieldViolation(f"PODRACER_{name.upper()}", found))
        if violations:
            raise InvalidInput(
                "; ".join(map(str, violations)), violations=violations, reason="INVALID_SETTING"
            )
