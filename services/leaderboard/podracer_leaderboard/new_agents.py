"""Creation of agents: those that a generator requests, users' forks, and founders with the weights
of other jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue.algorithms import find_algorithm
from podracer_core.catalogue.ranges import HyperparameterValue
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.evolution.agents import ALIVE, Action, NewAgent, Start, State
from podracer_core.evolution.search_space import shape_of
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import Competition
from podracer_leaderboard.tables import AgentRow, BoardRow, ParentRow
from podracer_platform.messages.catalogue import (
    hyperparameter_to_message,
    hyperparameters_from_message,
)
from podracer_platform.rpc.resource_names import last_part, parse_any

_KINDS = {
    Start.FRESH: agent_pb2.INITIALIZATION_KIND_FRESH,
    Start.COPY: agent_pb2.INITIALIZATION_KIND_COPY,
    Start.NOISE: agent_pb2.INITIALIZATION_KIND_NOISE,
    Start.FUSE: agent_pb2.INITIALIZATION_KIND_FUSE,
}


def check_founders(founders: Sequence[evolution_pb2.Founder], competition: Competition) -> None:
    """Raise InvalidInput for one that could not be trained here: of another algorithm, without a
    checkpoint, …"""
    violations = []
    for place, founder in enumerate(founders):
        try:
            parse_any(("agent", "artifact"), founder.agent, "agent")
            if founder.algorithm not in competition.space.shares:
                searched = ", ".join(competition.space.shares)
                raise InvalidInput(
                    f"{founder.agent} is an agent of {founder.algorithm}; searched are {searched}"
                )
            if not founder.checkpoint.prefix:
                raise InvalidInput(f"{founder.agent} has no checkpoint")
            _hyperparameters(founder)
        except InvalidInput as error:
            violations.append(FieldViolation(f"founders[{place}]", error.message))
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="INVALID_FOUNDER"
        )


def create_founders(session: Session, board: BoardRow, competition: Competition) -> None:
    """Make the first agents of a new leaderboard; they wait for their first pod.

    Each has its founder's shape, whatever the search says, and its own optimizer state, which a
    copy keeps."""
    founders = leaderboard_pb2.LeaderboardSpec.FromString(board.spec).founders
    for founder in founders[: competition.rules.population]:
        initialization = agent_pb2.Initialization(kind=agent_pb2.INITIALIZATION_KIND_COPY)
        initialization.parents.add(agent=founder.agent, checkpoint=founder.checkpoint, weight=1.0)
        spec = _new_spec(board, competition, founder.algorithm, _hyperparameters(founder))
        spec.initialization.CopyFrom(initialization)
        session.add(
            _waiting_row(
                board,
                spec,
                origin=Action.FRESH,
                reason=f"it starts from {founder.agent}",
                lineage=spec.name,
                waiting_since=store.tick(board),
                env_steps=0,
                cost_s=0.0,
                rung=0,
            )
        )
    session.flush()


def create_agent(
    session: Session,
    board: BoardRow,
    competition: Competition,
    new: NewAgent,
    living: Mapping[str, AgentRow],
) -> AgentRow:
    """Make the agent that a generator requests; the one of the `living` that it replaces
    retires."""
    parents = [living[parent.name] for parent in new.parents]
    replaced = living[new.replaced.name] if new.replaced else None
    if replaced is not None:
        replaced.state = State.RETIRED
    spec = _new_spec(board, competition, new.algorithm, new.hyperparameters)
    noise_seed = derive_seed(competition.rules.seed, "noise", board.agent_count)
    spec.initialization.CopyFrom(_initialization(new, parents, noise_seed))
    row = _waiting_row(
        board,
        spec,
        origin=new.action,
        reason=new.reason,
        replaced=replaced.name if replaced else "",
        lineage=parents[0].lineage if parents else spec.name,
        waiting_since=replaced.waiting_since if replaced else store.tick(board),
        # A fusion has had the training of its older parent: it is judged among those that are as
        # old.
        env_steps=max((parent.best_env_steps for parent in parents), default=0),
        cost_s=max((parent.best_cost_s for parent in parents), default=0.0),
        rung=max((parent.best_rung for parent in parents), default=0),
        generation=new.generation,
    )
    session.add(row)
    session.add_all(
        ParentRow(board=board.name, child=row.name, place=place, parent=parent.agent)
        for place, parent in enumerate(spec.initialization.parents)
    )
    return row


def fork_agent(
    session: Session,
    board: BoardRow,
    competition: Competition,
    parent: AgentRow,
    changed: Mapping[str, HyperparameterValue],
    request_id: str,
) -> AgentRow:
    """Make an agent of a parent's weights and optimizer, and of its hyperparameters with some
    `changed`.

    The checkpoint is that of the parent's best candidate, as of any child; the newest one where it
    has none.

    Raises InvalidInput for values that it cannot have, PreconditionFailed (NO_CHECKPOINT) where
    there are no weights."""
    hyperparameters = _forked(agent_pb2.AgentSpec.FromString(parent.spec), changed)
    lowest = select(func.min(AgentRow.generation)).where(
        AgentRow.board == board.name, AgentRow.state.in_([*ALIVE])
    )
    generation = session.scalar(lowest)
    spec = _new_spec(board, competition, parent.algorithm, hyperparameters)
    is_judged = parent.best_evaluation is not None
    spec.initialization.kind = agent_pb2.INITIALIZATION_KIND_COPY
    spec.initialization.inherit_replay = shape_of(
        spec.algorithm, hyperparameters
    ) == store.shape_of_row(parent)
    spec.initialization.parents.add(agent=parent.name, checkpoint=_weights(parent), weight=1.0)
    told = (
        ", ".join(f"{name} {hyperparameters[name]}" for name in sorted(changed))
        or "nothing changed"
    )
    row = _waiting_row(
        board,
        spec,
        origin=Action.EXPLOIT,
        reason=f"forked by a user from {last_part(parent.name)}: {told}",
        lineage=parent.lineage,
        waiting_since=store.tick(board),
        env_steps=parent.best_env_steps if is_judged else parent.env_steps,
        cost_s=parent.best_cost_s if is_judged else parent.cost_s,
        rung=parent.best_rung if is_judged else parent.rung,
        generation=parent.generation if generation is None else generation,
        fork_request=request_id,
    )
    session.add(row)
    session.add(ParentRow(board=board.name, child=row.name, place=0, parent=parent.name))
    return row


def _weights(parent: AgentRow) -> agent_pb2.CheckpointReference:
    if parent.best_evaluation is not None:
        return agent_pb2.Evaluation.FromString(parent.best_evaluation).checkpoint
    if parent.latest_checkpoint is not None:
        return agent_pb2.CheckpointReference.FromString(parent.latest_checkpoint)
    message = f"agent {parent.name} has no checkpoint yet: its first round has not ended"
    raise PreconditionFailed(message, reason="NO_CHECKPOINT", agent=parent.name)


def _forked(
    parent: agent_pb2.AgentSpec, changed: Mapping[str, HyperparameterValue]
) -> dict[str, HyperparameterValue]:
    """Raises InvalidInput with every value that is unknown, out of its bounds, or would need
    another network."""
    values = hyperparameters_from_message(parent.hyperparameters)
    knobs = {knob.name: knob for knob in find_algorithm(parent.algorithm).hyperparameters}
    violations: list[FieldViolation] = []
    for name, value in sorted(changed.items()):
        knob = knobs.get(name)
        try:
            if knob is None:
                raise InvalidInput.of(name, f"is no hyperparameter of {parent.algorithm}")
            fitted = knob.typed(value)
            knob.check(fitted)
            if not knob.keeps_weights and fitted != values.get(name):
                problem = (
                    "is of the network, which the parent's weights have to fit: it stays "
                    f"{values.get(name)}"
                )
                raise InvalidInput.of(name, problem)
            values[name] = fitted
        except InvalidInput as error:
            violations += error.violations
    if violations:
        raise InvalidInput(
            "; ".join(map(str, violations)), violations=violations, reason="INVALID_HYPERPARAMETER"
        )
    return values


def derive_seed(seed: int, stream: str, number: int) -> int:
    """A seed from 0 to 2^63 - 1: SHA-256 of its origin."""
    digest = hashlib.sha256(f"podracer/{seed}/{stream}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(seed: int, name: str, number: int) -> Random:
    """A generator of its own; only its `random()` gives the same on every version of Python."""
    return Random(derive_seed(seed, name, number))  # noqa: S311 - repeatable is what it must be


def _new_spec(
    board: BoardRow,
    competition: Competition,
    algorithm: str,
    hyperparameters: Mapping[str, HyperparameterValue],
) -> agent_pb2.AgentSpec:
    """The spec of the board's next agent, which gets its number, name and seed."""
    board.agent_count += 1
    return agent_pb2.AgentSpec(
        name=messages.agent_name(board.job, board.agent_count),
        algorithm=algorithm,
        seed=derive_seed(competition.rules.seed, "agent", board.agent_count),
        hyperparameters={
            name: hyperparameter_to_message(value) for name, value in hyperparameters.items()
        },
    )


def _waiting_row(board: BoardRow, spec: agent_pb2.AgentSpec, **fields: Any) -> AgentRow:
    return AgentRow(
        board=board.name,
        number=board.agent_count,
        name=spec.name,
        algorithm=spec.algorithm,
        spec=messages.to_bytes(spec),
        state=State.WAITING,
        create_time=store.now(),
        **fields,
    )


def _initialization(
    new: NewAgent, parents: list[AgentRow], noise_seed: int
) -> agent_pb2.Initialization:
    """First weights from the parents' candidates. Transitions come along from one of the same
    shape, if there are any: else a child waits for as many of its own as anyone that begins."""
    inherit_replay = [parent.shape for parent in new.parents] == [new.shape]
    initialization = agent_pb2.Initialization(kind=_KINDS[new.start], inherit_replay=inherit_replay)
    for parent in parents:
        candidate = agent_pb2.Evaluation.FromString(parent.best_evaluation or b"")
        initialization.parents.add(
            agent=parent.name, checkpoint=candidate.checkpoint, weight=1 / len(parents)
        )
    if new.start is Start.NOISE:
        initialization.seed, initialization.noise_scale = noise_seed, new.noise_scale
    return initialization


def _hyperparameters(founder: evolution_pb2.Founder) -> dict[str, HyperparameterValue]:
    """All hyperparameters, with defaults filled in. Raises InvalidInput for an unknown name or a
    wrong value."""
    info = find_algorithm(founder.algorithm)
    values: dict[str, HyperparameterValue] = info.defaults()
    given = hyperparameters_from_message(founder.hyperparameters)
    if unknown := sorted(given.keys() - values.keys()):
        raise InvalidInput(f"{founder.algorithm} has no hyperparameter {', '.join(unknown)}")
    values |= given
    for knob in info.hyperparameters:
        knob.check(values[knob.name])
    return values
