"""Rows -> messages for callers, and checks of names in requests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from google.protobuf import timestamp_pb2
from google.protobuf.message import Message

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import InvalidInput
from podracer_core.evolution.agents import Action, State
from podracer_leaderboard.tables import AgentRow, AliasRow, BoardRow, CandidateRow
from podracer_platform.messages.sections import seconds_to_duration
from podracer_platform.rpc.resource_names import check_label, parse

ACTIONS = {
    Action.CONTINUE: leaderboard_pb2.PROPOSAL_ACTION_CONTINUE,
    Action.EXPLOIT: leaderboard_pb2.PROPOSAL_ACTION_EXPLOIT,
    Action.FRESH: leaderboard_pb2.PROPOSAL_ACTION_FRESH,
}
STATES = {
    State.TRAINING: leaderboard_pb2.AGENT_STATE_TRAINING,
    State.WAITING: leaderboard_pb2.AGENT_STATE_WAITING,
    State.RETIRED: leaderboard_pb2.AGENT_STATE_RETIRED,
    State.FAILED: leaderboard_pb2.AGENT_STATE_FAILED,
    State.STOPPED: leaderboard_pb2.AGENT_STATE_STOPPED,
}


def to_bytes(message: Message) -> bytes:
    """Serialized so that equal messages give equal bytes."""
    return message.SerializeToString(deterministic=True)


def timestamp(time: datetime) -> timestamp_pb2.Timestamp:
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(time)
    return message


def agent_spec(row: AgentRow) -> agent_pb2.AgentSpec:
    """An agent's complete specification for training, from its current state."""
    spec = agent_pb2.AgentSpec.FromString(row.spec)
    if row.latest_checkpoint is not None:
        spec.resume.ParseFromString(row.latest_checkpoint)
    spec.env_steps = row.env_steps
    spec.cost.CopyFrom(seconds_to_duration(row.cost_s))
    return spec


def agent(row: AgentRow, exclusion: str = "") -> leaderboard_pb2.Agent:
    spec = agent_spec(row)
    message = leaderboard_pb2.Agent(
        name=row.name,
        spec=spec,
        state=STATES[State(row.state)],
        origin=ACTIONS[Action(row.origin)],
        parents=[parent.agent for parent in spec.initialization.parents],
        lineage=row.lineage,
        env_steps=row.env_steps,
        cost=seconds_to_duration(row.cost_s),
        rung=row.rung,
        create_time=timestamp(row.create_time),
        failure=row.failure,
        reason=row.reason,
        replaced=row.replaced,
        pinned=row.pinned,
        stopping=row.stopping,
        evaluated_episodes=row.episodes,
        broken_number_episodes=row.broken_numbers,
        broken_code_episodes=row.broken_code,
        best_score=row.best_score,
        exclusion=exclusion,
    )
    if row.latest_evaluation is not None:
        message.latest_evaluation.ParseFromString(row.latest_evaluation)
    if row.best_evaluation is not None:
        message.best_evaluation.ParseFromString(row.best_evaluation)
    return message


def exclusions(found: Mapping[str, str]) -> list[leaderboard_pb2.Exclusion]:
    """The agents that cannot be first, and why."""
    return [
        leaderboard_pb2.Exclusion(agent=agent, reason=reason) for agent, reason in found.items()
    ]


def candidate(
    rank: int, row: CandidateRow, agent_row: AgentRow, exclusion: str
) -> leaderboard_pb2.Candidate:
    return leaderboard_pb2.Candidate(
        rank=rank,
        agent=agent(agent_row, exclusion),
        evaluation=agent_pb2.Evaluation.FromString(row.evaluation),
        admit_time=timestamp(row.admit_time),
        confirmed=row.confirmed,
        score=row.score,
        exclusion=exclusion,
    )


def leave_out_episodes(candidate: leaderboard_pb2.Candidate) -> None:
    """Make the evaluations of a candidate small: ListEvaluations has them whole."""
    for _, value in (*candidate.ListFields(), *candidate.agent.ListFields()):
        if isinstance(value, agent_pb2.Evaluation):
            for long in ("returns", "lengths", "seeds", "statistics", "first_break"):
                value.ClearField(long)


def leaderboard(
    board: BoardRow, candidates: list[leaderboard_pb2.Candidate], aliases: dict[str, str]
) -> leaderboard_pb2.Leaderboard:
    return leaderboard_pb2.Leaderboard(
        name=board.name,
        spec=leaderboard_pb2.LeaderboardSpec.FromString(board.spec),
        candidates=candidates,
        revision=board.revision,
        update_time=timestamp(board.update_time),
        agent_count=board.agent_count,
        aliases=aliases,
    )


def alias_change(row: AliasRow) -> leaderboard_pb2.AliasChange:
    change = leaderboard_pb2.AliasChange(
        alias=row.alias, agent=row.agent, reason=row.reason, create_time=timestamp(row.create_time)
    )
    if row.checkpoint:
        change.checkpoint.ParseFromString(row.checkpoint)
    return change


def check_leaderboard(name: str, field: str = "leaderboard") -> str:
    """`name`, unless it is no leaderboard's: then InvalidInput."""
    parse("leaderboard", name, field)
    return name


def check_job(name: str, field: str) -> str:
    """`name`, unless it is no job's: then InvalidInput."""
    parse("job", name, field)
    return name


def check_agent(name: str, field: str = "agent") -> str:
    """`name`, unless it is no agent's: then InvalidInput."""
    parse("agent", name, field)
    return name


def check_alias(name: str, field: str = "alias") -> str:
    """`name`, unless it is no DNS label: then InvalidInput."""
    check_label(name, field)
    return name


def check_text(value: str, field: str, limit: int = 200) -> str:
    """`value`, unless it is empty or longer than `limit`: then InvalidInput."""
    if not 0 < len(value) <= limit:
        raise InvalidInput.of(field, f"expected 1 to {limit} characters, got {len(value)}")
    return value


def agent_name(job: str, number: int) -> str:
    """The name of a job's agent by its number, from 1."""
    return f"{job}/agents/a{number:04}"
