"""A TRAIN lease with followers: this learner leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from podracer.orchestrator.v1 import pod_service_pb2
from podracer_core.algorithms.algorithm import Algorithm
from podracer_core.fusion.fusion import FusionOptions, fusion_class
from podracer_core.fusion.table import LEAD, FusionTable
from podracer_core.jobs.messages import seconds_from_duration
from podracer_core.training.epochs import EpochFusion
from podracer_learner.fusion_desk import FusionDesk
from podracer_learner.fusion_lead import FusionLead, LeadTerms

__all__ = ["fusion_deadline_s", "leading"]

_FUSION = "mean"
_DEADLINE_S = 10.0


@contextmanager
def leading(
    work: pod_service_pb2.TrainWork, terms: LeadTerms, algorithm: Algorithm, desk: FusionDesk
) -> Iterator[EpochFusion | None]:
    """Admit followers to the round of `algorithm` meanwhile, as its grant says; None where it is to learn alone.

    Raises InvalidInput for a fusion that there is not, and for an algorithm that knows none.
    """
    if not work.follower_count:
        yield None
        return
    spec = work.fusion
    fusion = fusion_class(spec.fusion or _FUSION)(
        FusionOptions(
            spec.outer_learning_rate if spec.HasField("outer_learning_rate") else 1.0,
            spec.outer_momentum if spec.HasField("outer_momentum") else 0.0,
        )
    )
    sharing = algorithm.share(LEAD)
    table = FusionTable(fusion, sharing.state().to("cpu"), quorum=spec.quorum, deadline_s=fusion_deadline_s(spec))
    with desk.serving(FusionLead(table, terms)) as lead:
        yield EpochFusion(algorithm, sharing, lead, LEAD, spec.interval_updates)


def fusion_deadline_s(spec: pod_service_pb2.FusionSpec) -> float:
    """How long the lead waits for the others."""
    return seconds_from_duration(spec.deadline) if spec.HasField("deadline") else _DEADLINE_S
