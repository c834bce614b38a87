"""The pods that work for a job: their number, their layout, and the fusion of several learners."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from podracer_core.catalogue import BUILT_IN_FUSIONS, OUTER
from podracer_core.config import ByteSize, Seconds
from podracer_core.sections.evolution import MAX_COUNT, Checks, is_extension_name

# part of the names of pods, which have 63 characters
_PROFILE = re.compile(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")
CHECKPOINT_INTERVAL_S = 30.0
"""How often the members of a round are stored."""
MAX_PODS = 4096
MAX_MEMBERS = 1024
MAX_ENVS_PER_MEMBER = 1 << 17
MAX_WORKERS = 256
MAX_LEARNERS = 64
MAX_INTERVAL = 1_000_000
MAX_DEADLINE_S = 3600.0
MAX_LEARNING_RATE = 100.0


def is_profile_name(text: str) -> bool:
    """Whether `text` is a valid name of a pod profile."""
    return _PROFILE.fullmatch(text) is not None


@dataclass(frozen=True)
class PodCount:
    """How many pods may work for the job; `max` is `min` unless set."""

    min: int = 1
    max: int | None = None

    @property
    def most(self) -> int:
        """`max`, or `min` if that is unset."""
        return self.min if self.max is None else self.max


@dataclass(frozen=True)
class Resources:
    """Needs of one pod; None: automatic. cpu in cores, memory in bytes, gpu in devices."""

    cpu: float | None = None
    memory: ByteSize | None = None
    gpu: int = 0


@dataclass(frozen=True)
class Fusion:
    """The fusion of an agent's learners.

    name           `mean`, `weighted` (by samples), `outer` (an outer optimizer), or an installed
                   package's
    interval       updates between two fusions; None: an epoch's
    quorum         learners that must have answered, the lead included; None: more than half
    deadline       how long to wait for the others, in seconds
    learning_rate  step size of the outer optimizer; None: 1
    momentum       of the outer optimizer; None: 0
    """

    name: str = "mean"
    interval: int | None = None
    quorum: int | None = None
    deadline: Seconds = 10.0
    learning_rate: float | None = None
    momentum: float | None = None

    def check(self, check: Checks, learners: int) -> None:
        """Check each key, and the keys that depend on each other. The server checks whether it has
        the fusion."""
        expected = f"expected the name of an installed fusion, got {self.name!r}"
        check.that(is_extension_name(self.name), "pod.fusion.name", expected)
        check.between(self.interval, 1, MAX_INTERVAL, "pod.fusion.interval")
        expected = f"expected 1 to {learners}, the number of learners; got {self.quorum}"
        check.that(
            self.quorum is None or 1 <= self.quorum <= learners, "pod.fusion.quorum", expected
        )
        check.positive(self.deadline, MAX_DEADLINE_S, "pod.fusion.deadline")
        check.positive(self.learning_rate, MAX_LEARNING_RATE, "pod.fusion.learning_rate")
        expected = f"expected 0 or more and less than 1, got {self.momentum!r}"
        check.that(
            self.momentum is None or 0.0 <= self.momentum < 1.0, "pod.fusion.momentum", expected
        )
        if self.name in BUILT_IN_FUSIONS and self.name != OUTER:
            for name in ("learning_rate", "momentum"):
                message = f"{self.name} has no {name}: write name: {OUTER}, or leave it out"
                check.that(getattr(self, name) is None, f"pod.fusion.{name}", message)


@dataclass(frozen=True)
class Pod:
    """The pods that work for the job.

    count           with several learners: of teams, each of as many pods
    members         agents that a pod trains at once; None: `auto`
    envs_per_member environments of each; None: `auto`
    learners        learners of each agent, each in a pod of its own
    workers         of each pod, in the split layout
    layout          split: workers and evaluator are processes; fused: all in the learner; auto:
                    fused for built-in environments
    deterministic   lock-step, for bit-exact resume in the split layout too
    fusion          fusion of several learners; None: the mean, once an epoch
    profile         a pod profile, one that the operator of the cluster has defined; empty: anywhere
    """

    count: PodCount = field(default_factory=PodCount)
    members: int | None = None
    envs_per_member: int | None = None
    learners: int = 1
    workers: int = 1
    layout: Literal["auto", "split", "fused"] = "auto"
    resources: Resources = field(default_factory=Resources)
    deterministic: bool = False
    fusion: Fusion | None = None
    profile: str = ""

    def check(self, check: Checks, population: int) -> None:
        """Check each key, and the keys that depend on each other."""
        if check.between(self.count.min, 1, MAX_PODS, "pod.count.min"):
            check.between(self.count.most, self.count.min, MAX_PODS, "pod.count.max")
        if check.between(self.members, 1, MAX_MEMBERS, "pod.members") and self.members is not None:
            needed = self.members * self.count.min
            pods = f"{self.count.min} pods of {self.members} members"
            message = f"{pods} need a population of {needed}; it is {population}"
            check.that(needed <= population, "pod.members", message)
        check.between(self.envs_per_member, 1, MAX_ENVS_PER_MEMBER, "pod.envs_per_member")
        self._check_learners(check)
        check.between(self.workers, 1, MAX_WORKERS, "pod.workers")
        check.positive(self.resources.cpu, 4096.0, "pod.resources.cpu")
        check.positive(self.resources.memory, MAX_COUNT, "pod.resources.memory")
        check.between(self.resources.gpu, 0, 64, "pod.resources.gpu")
        expected = (
            f"expected lower-case letters, digits and '-', at most 20; got {self.profile[:100]!r}"
        )
        check.that(not self.profile or is_profile_name(self.profile), "pod.profile", expected)

    def _check_learners(self, check: Checks) -> None:
        if not check.between(self.learners, 1, MAX_LEARNERS, "pod.learners"):
            return
        if self.learners == 1:
            alone = "fusion needs several learners: leave it out, or write learners: 2 or more"
            check.that(self.fusion is None, "pod.fusion", alone)
            return
        lock_step = (
            "expected 1 with deterministic: true: the time at which other learners join "
            "is not reproducible"
        )
        check.that(not self.deterministic, "pod.learners", lock_step)
        most, fitting = self.count.most, MAX_PODS // self.learners
        if most <= MAX_PODS:  # otherwise that is reported already
            product = f"{most} times {self.learners} learners are more than {MAX_PODS} pods"
            check.that(most <= fitting, "pod.count.max", f"{product}: expected {fitting} at most")
        if self.fusion is not None:
            self.fusion.check(check, self.learners)
