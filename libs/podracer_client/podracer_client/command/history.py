"""`podracer history`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server

if TYPE_CHECKING:
    from podracer.common.v1 import agent_pb2
    from podracer.orchestrator.v1 import job_service_pb2

_SIDES = ("champion", "challenger")
_TITLES = ("no", "time", "generation", "alias", "decision", "policy", *_SIDES, "reason")


@with_server
def history(
    server: ServerOptions,
    job: JobName,
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="Only of this alias.")] = "",
    json: Json = False,
) -> None:
    """Show what was promoted, what was not, and why, newest first; of a state folder also when nothing runs there."""
    from podracer_client.display.listing import columns
    from podracer_client.display.messages import write_json
    from podracer_client.names import short_name

    with server.read() as client:
        found = client.promotions(job, alias=alias)
    if json:
        for promotion in found:
            write_json(promotion_json(promotion))
    elif found:
        sys.stdout.write(columns(_TITLES, [_row(each) for each in found], right=("no", "generation", *_SIDES)) + "\n")
    else:
        sys.stdout.write(f"{short_name(job)}: nothing was promoted yet\n")


def show_promotion(promotion: job_service_pb2.Promotion, *, json: bool) -> None:
    """A decision that has just been made."""
    from podracer_client.display.messages import write_json

    if json:
        write_json(promotion_json(promotion))
    else:
        sys.stdout.write(f"{promotion.alias}: {promotion.policy.agent}, {policy_name(promotion)}\n")


def policy_name(promotion: job_service_pb2.Promotion) -> str:
    """The name of the checkpoint that the alias points at, as `export` and `evaluate` take it; empty for none."""
    from podracer_client.names import short_name

    prefix = promotion.policy.checkpoint.prefix.rstrip("/")
    return f"{promotion.policy.agent}/checkpoints/{short_name(prefix)}" if prefix else ""


def promotion_json(promotion: job_service_pb2.Promotion) -> dict[str, Any]:
    """A decision; `policy` is what the alias points at from then on."""
    return {
        "position": promotion.position,
        "alias": promotion.alias,
        "decision": _decision(promotion),
        "policy": policy_name(promotion) or None,
        "generation": promotion.generation or None,
        "job": promotion.job or None,
        "data_sha256": promotion.data_sha256 or None,
        "champion": _side(promotion.champion) if promotion.HasField("champion") else None,
        "challenger": _side(promotion.challenger) if promotion.HasField("challenger") else None,
        "reason": promotion.reason,
        "create_time": promotion.create_time.ToJsonString(),
    }


def _side(evaluation: agent_pb2.Evaluation) -> dict[str, Any]:
    from podracer_client.display.messages import evaluation_json

    return {"agent": evaluation.agent, **evaluation_json(evaluation)}


def _row(promotion: job_service_pb2.Promotion) -> tuple[str, ...]:
    from podracer_client.display.numbers import time_text

    champion = promotion.champion if promotion.HasField("champion") else None
    challenger = promotion.challenger if promotion.HasField("challenger") else None
    agent = promotion.policy.agent.partition("/jobs/")[2].replace("/agents/", "/")
    return (
        str(promotion.position),
        time_text(promotion.create_time),
        str(promotion.generation or ""),
        promotion.alias,
        _decision(promotion),
        agent,
        _mean_text(champion),
        _mean_text(challenger),
        promotion.reason,
    )


def _mean_text(evaluation: agent_pb2.Evaluation | None) -> str:
    """With five digits: a Sharpe ratio is a small number."""
    return "–" if evaluation is None else f"{evaluation.mean:.5g}"


def _decision(promotion: job_service_pb2.Promotion) -> str:
    from podracer.orchestrator.v1 import job_service_pb2

    return job_service_pb2.PromotionDecision.Name(promotion.decision).removeprefix("PROMOTION_DECISION_")
