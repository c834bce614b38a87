"""What cannot be right in a job's `pod.learners` and `pod.fusion`."""

from __future__ import annotations

import re

from podracer_core.catalogue.fusions import BUILT_IN_FUSIONS, OUTER
from podracer_core.jobs.checks import Checks
from podracer_core.jobs.spec import Fusion, Pod

__all__ = ["MAX_LEARNERS", "MAX_PODS", "check_learners"]

MAX_PODS = 4096
MAX_LEARNERS = 64
MAX_INTERVAL = 1_000_000
MAX_DEADLINE_S = 3600.0
MAX_LEARNING_RATE = 100.0

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


def check_learners(check: Checks, pod: Pod) -> None:
    """Each key by itself, and what goes together. Whether there is a fusion of a name is for the server to say."""
    if not check.between(pod.learners, 1, MAX_LEARNERS, "pod.learners"):
        return
    if pod.learners == 1:
        alone = "one learner has nobody to fuse with: leave it out, or write learners: 2 or more"
        check.that(pod.fusion is None, "pod.fusion", alone)
        return
    lock_step = "expected 1 with deterministic: true: nobody can say when the others join"
    check.that(not pod.deterministic, "pod.learners", lock_step)
    if 1 <= pod.count.most <= MAX_PODS:  # else that is told already
        fitting = MAX_PODS // pod.learners
        message = (
            f"{pod.count.most} times {pod.learners} learners are more than {MAX_PODS} pods: expected {fitting} at most"
        )
        check.that(pod.count.most <= fitting, "pod.count.max", message)
    if pod.fusion is not None:
        _check_fusion(check, pod.fusion, pod.learners)


def _check_fusion(check: Checks, fusion: Fusion, learners: int) -> None:
    known = _EXTENSION.fullmatch(fusion.name) is not None
    check.that(known, "pod.fusion.name", f"expected the name of an installed fusion, got {fusion.name!r}")
    if fusion.interval is not None:
        check.between(fusion.interval, 1, MAX_INTERVAL, "pod.fusion.interval")
    if fusion.quorum is not None:
        expected = f"expected 1 to {learners}, the number of learners; got {fusion.quorum}"
        check.that(1 <= fusion.quorum <= learners, "pod.fusion.quorum", expected)
    check.positive(fusion.deadline, MAX_DEADLINE_S, "pod.fusion.deadline")
    check.positive(fusion.learning_rate, MAX_LEARNING_RATE, "pod.fusion.learning_rate")
    if fusion.momentum is not None:
        expected = f"expected 0 or more and less than 1, got {fusion.momentum!r}"
        check.that(0.0 <= fusion.momentum < 1.0, "pod.fusion.momentum", expected)
    for name in ("learning_rate", "momentum"):
        if fusion.name in BUILT_IN_FUSIONS and fusion.name != OUTER:
            message = f"{fusion.name} has no {name}: write name: {OUTER}, or leave it out"
            check.that(getattr(fusion, name) is None, f"pod.fusion.{name}", message)
