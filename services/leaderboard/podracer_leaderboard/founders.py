"""Founders: agents of other jobs whose weights the first agents of a leaderboard start from."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.messages import hyperparameter_to_message, hyperparameters_from_message
from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_leaderboard import messages, names, store
from podracer_leaderboard.agents import Action, State
from podracer_leaderboard.competition import Competition
from podracer_leaderboard.seeds import derive_seed
from podracer_leaderboard.tables import AgentRow, BoardRow


def check_founders(founders: Sequence[evolution_pb2.Founder], competition: Competition) -> None:
    """Raise InvalidInput for one that could not be trained here: of another algorithm, without a checkpoint, …"""
    violations = []
    for place, founder in enumerate(founders):
        try:
            names.check_agent(founder.agent)
            if founder.algorithm not in competition.space.shares:
                searched = ", ".join(competition.space.shares)
                message = f"{founder.agent} is an agent of {founder.algorithm}; searched are {searched}"
                raise InvalidInput(message)
            if not founder.checkpoint.prefix:
                raise InvalidInput(f"{founder.agent} has no checkpoint")
            _hyperparameters(founder)
        except InvalidInput as error:
            violations.append(FieldViolation(f"founders[{place}]", error.message))
    if violations:
        raise InvalidInput("; ".join(map(str, violations)), violations=violations, reason="INVALID_FOUNDER")


def create_founders(session: Session, board: BoardRow, competition: Competition) -> None:
    """Make the first agents of a leaderboard that has none yet; they wait for their first pod.

    Each has its founder's shape, whatever the search says, and its own optimizer state, which a copy keeps.
    """
    founders = leaderboard_pb2.LeaderboardSpec.FromString(board.spec).founders
    for founder in founders[: competition.rules.population]:
        board.agent_count += 1
        number = board.agent_count
        name = names.agent_name(board.job, number)
        initialization = agent_pb2.Initialization(kind=agent_pb2.INITIALIZATION_KIND_COPY)
        initialization.parents.add(agent=founder.agent, checkpoint=founder.checkpoint, weight=1.0)
        spec = agent_pb2.AgentSpec(
            name=name,
            algorithm=founder.algorithm,
            seed=derive_seed(competition.rules.seed, "agent", number),
            hyperparameters={key: hyperparameter_to_message(each) for key, each in _hyperparameters(founder).items()},
            initialization=initialization,
        )
        session.add(
            AgentRow(
                board=board.name,
                number=number,
                name=name,
                algorithm=founder.algorithm,
                spec=messages.to_bytes(spec),
                origin=Action.FRESH,
                state=State.WAITING,
                reason=f"it starts from {founder.agent}",
                replaced="",
                lineage=name,
                create_time=store.now(),
                waiting_since=store.tick(board),
                env_steps=0,
                cost_s=0.0,
                rung=0,
            )
        )
    session.flush()


def _hyperparameters(founder: evolution_pb2.Founder) -> dict[str, HyperparameterValue]:
    """All of them, defaults filled in. Raises InvalidInput for an unknown one, or a value that it cannot have."""
    info = find_algorithm(founder.algorithm)
    values: dict[str, HyperparameterValue] = info.defaults()
    given = hyperparameters_from_message(founder.hyperparameters)
    if unknown := sorted(given.keys() - values.keys()):
        raise InvalidInput(f"{founder.algorithm} has no hyperparameter {', '.join(unknown)}")
    values |= given
    for knob in info.hyperparameters:
        knob.check(values[knob.name])
    return values
