"""`podracer leaderboard`, and what its aliases point at: `promote`, `rollback`, `history`."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import JobName, Json, ServerOptions, with_server
from podracer_client.display import columns, write_json
from podracer_client.names import enum_word, leaderboard_name, short_name, time_json, time_text
from podracer_core.errors import NotFound

if TYPE_CHECKING:
    from podracer.common.v1 import agent_pb2
    from podracer.leaderboard.v1 import leaderboard_service_pb2
    from podracer.orchestrator.v1 import job_service_pb2

_SIDES = ("champion", "challenger")
_TITLES = ("no", "time", "generation", "alias", "decision", "policy", *_SIDES, "reason")

AliasName = Annotated[
    str,
    typer.Option(
        "--as", metavar="ALIAS", help="The alias.", show_default="champion, or the job's own alias"
    ),
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason, shown in the history.")]


@with_server
def leaderboard(
    server: ServerOptions,
    job: JobName,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print the leaderboard again at each change.")
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Show every hyperparameter, not only those that differ or are unusual."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show a job's ranked agents, best first. Needs no running server for a state folder."""
    show = partial(_show_leaderboard, server, watch=watch, every=every, json=json)
    try:
        show(leaderboard_name(job))
    except NotFound as error:
        # no id, but maybe the name in a job's file, which only the orchestrator knows
        if error.reason != "LEADERBOARD_NOT_FOUND":
            raise
        show(leaderboard_name(server.full_job_name(job)))


def _show_leaderboard(
    server: ServerOptions, name: str, *, watch: bool, every: bool, json: bool
) -> None:
    with server.connect() if watch else server.read(only_leaderboard=True) as client:
        _show_board(client.leaderboard(name), every=every, json=json)
        if watch:
            for board in client.watch_leaderboard(name):
                _show_board(board, every=every, json=json)


@with_server
def promote(
    server: ServerOptions,
    job: JobName,
    policy: Annotated[
        str,
        typer.Option(
            "--agent",
            metavar="AGENT|CHECKPOINT",
            help="An agent's id or name, or the name of a checkpoint.",
            show_default="the best one; for a continuous job the best one of its newest generation",
        ),
    ] = "",
    alias: AliasName = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Point an alias of a job's leaderboard at a policy. Policy servers that follow the alias load
    it."""
    with server.connect() as client:
        _show_promotion(client.promote(job, policy, alias=alias, reason=reason), json=json)


@with_server
def rollback(
    server: ServerOptions,
    job: JobName,
    alias: AliasName = "",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Point an alias back at its previous policy. Each further rollback goes one policy further
    back."""
    with server.connect() as client:
        _show_promotion(client.roll_back(job, alias=alias, reason=reason), json=json)


@with_server
def history(
    server: ServerOptions,
    job: JobName,
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="Only this alias.")] = "",
    json: Json = False,
) -> None:
    """Show promotions and rejections with their reasons, newest first. Needs no running server for
    a state folder."""
    with server.read() as client:
        found = client.promotions(job, alias=alias)
    if json:
        for promotion in found:
            write_json(_promotion_json(promotion))
    elif found:
        sys.stdout.write(
            columns(_TITLES, [_row(each) for each in found], right=("no", "generation", *_SIDES))
            + "\n"
        )
    else:
        sys.stdout.write(f"{short_name(job)}: no policy was promoted yet\n")


def _show_board(board: leaderboard_service_pb2.Leaderboard, *, every: bool, json: bool) -> None:
    from podracer_client.display import candidate_json, leaderboard_text
    from podracer_client.jobs import corrected_means

    if json:
        corrected = corrected_means([candidate.evaluation for candidate in board.candidates])
        for candidate, mean in zip(board.candidates, corrected, strict=True):
            write_json({**candidate_json(candidate), "corrected_mean": mean})
    else:
        sys.stdout.write(leaderboard_text(board, every=every))
        sys.stdout.flush()


def _show_promotion(promotion: job_service_pb2.Promotion, *, json: bool) -> None:
    """A decision that has just been made."""
    if json:
        write_json(_promotion_json(promotion))
    else:
        sys.stdout.write(
            f"{promotion.alias}: {promotion.policy.agent}, {_policy_name(promotion)}\n"
        )


def _policy_name(promotion: job_service_pb2.Promotion) -> str:
    """The name of the checkpoint that the alias points at, as `export` and `evaluate` take it;
    empty for none."""
    prefix = promotion.policy.checkpoint.prefix.rstrip("/")
    return f"{promotion.policy.agent}/checkpoints/{short_name(prefix)}" if prefix else ""


def _promotion_json(promotion: job_service_pb2.Promotion) -> dict[str, Any]:
    """A decision; `policy` is what the alias points at from then on."""
    return {
        "position": promotion.position,
        "alias": promotion.alias,
        "decision": _decision(promotion),
        "policy": _policy_name(promotion) or None,
        "generation": promotion.generation or None,
        "job": promotion.job or None,
        "data_sha256": promotion.data_sha256 or None,
        "champion": _side(promotion.champion) if promotion.HasField("champion") else None,
        "challenger": _side(promotion.challenger) if promotion.HasField("challenger") else None,
        "reason": promotion.reason,
        "create_time": time_json(promotion.create_time),
    }


def _side(evaluation: agent_pb2.Evaluation) -> dict[str, Any]:
    from podracer_client.display import evaluation_json

    return {"agent": evaluation.agent, **evaluation_json(evaluation)}


def _row(promotion: job_service_pb2.Promotion) -> tuple[str, ...]:
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
    """The mean with five digits: a Sharpe ratio is a small number."""
    return "–" if evaluation is None else f"{evaluation.mean:.5g}"


def _decision(promotion: job_service_pb2.Promotion) -> str:
    from podracer.orchestrator.v1 import job_service_pb2

    return enum_word(job_service_pb2.PromotionDecision, promotion.decision)
