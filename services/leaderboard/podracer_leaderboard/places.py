"""New agents; and places on the board: taken by a candidate, confirmed by a challenge, given back
if that falls short.

Of a checkpoint that was challenged only the challenge counts, from wherever it is known: a place is
a function of what is stored, whatever the order in which it came."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.catalogue import HyperparameterValue, find_algorithm
from podracer_core.errors import FieldViolation, InvalidInput, PreconditionFailed
from podracer_core.evolution import (
    ALIVE,
    Action,
    Admission,
    Entry,
    EvaluationSummary,
    NewAgent,
    Start,
    State,
    claims_first,
    shape_of,
)
from podracer_core.sections import MIN_EPISODES
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import Competition, competition_of
from podracer_leaderboard.tables import (
    AgentRow,
    BoardRow,
    CandidateRow,
    EvaluationRow,
    ParentRow,
    RoundRow,
)
from podracer_platform.jobs import counted
from podracer_platform.messages import hyperparameter_to_message, hyperparameters_from_message
from podracer_platform.rpc import last_part, parse_any

FINAL = agent_pb2.EVALUATION_PURPOSE_FINAL


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement of a checkpoint: an evaluation, its finite score, and whether it is a
    challenge."""

    evaluation: agent_pb2.Evaluation
    score: float
    confirmed: bool = False

    @property
    def order(self) -> tuple[float, float]:
        """The order of candidates; larger is better."""
        return self.score, self.evaluation.mean

    @property
    def prefix(self) -> str:
        """The prefix of the checkpoint."""
        return self.evaluation.checkpoint.prefix

    def entry(self, session: Session, board: BoardRow, agent: AgentRow, order: int) -> Entry:
        """The candidate as an entry of the ranking."""
        excluded = agent.name in store.exclusions(session, board)
        mean = self.evaluation.mean
        return Entry(
            agent.name, agent.lineage, self.score, mean, order, self.confirmed, excluded=excluded
        )


def score_of(
    board: BoardRow, evaluation: agent_pb2.Evaluation, *, within_rung: bool = False
) -> float | None:
    """The number that an evaluation ranks by, each broken episode with the board's lowest return;
    None where it is no finite one. Within a rung an evaluation without an intact episode has that
    lowest return."""
    known = counted(evaluation, board.lowest_return)
    if known is None:
        return board.lowest_return if within_rung else None
    updater = competition_of(board.spec).updater
    summary = EvaluationSummary(
        known.mean, known.lower_bound, known.upper_bound, len(known.returns)
    )
    score = updater.rung_score if within_rung else updater.score
    return score(summary) if summary.is_finite else None


def judged(session: Session, board: BoardRow, own: Judged) -> Judged:
    """The judgement of the checkpoint of `own`: its challenge if there was one, else `own`
    itself."""
    return next(iter(_confirmed(session, board, own.evaluation.agent, own.prefix)), own)


def take(
    session: Session, board: BoardRow, agent: AgentRow, candidate: Judged
) -> tuple[Admission, bool]:
    """Put a candidate on the board where the updater says so. Whether it asks for a challenge is
    the second value.

    It does where it claims the first place, or has driven out the first: its own agent's former
    candidate, where others claim still more. One that is not confirmed remembers the confirmed one
    that it drives out. Short rounds do not pay for a full evaluation: fewer episodes count with
    their lower bound."""
    if candidate.evaluation.purpose == agent_pb2.EVALUATION_PURPOSE_PROGRESS:
        if (episodes := len(candidate.evaluation.returns)) < MIN_EPISODES:
            return Admission(
                0, f"too few episodes: {episodes}, a place needs {MIN_EPISODES}"
            ), False
        known = counted(candidate.evaluation, board.lowest_return)
        assert known is not None, "a candidate has a score"
        candidate = replace(candidate, score=min(candidate.score, known.lower_bound))
    rows = store.get_candidates(session, board.name)
    entries = store.entries(session, rows)
    entry = candidate.entry(session, board, agent, board.clock)
    admission = competition_of(board.spec).updater.admit(entries, entry)
    if not admission.is_admitted:
        return admission, False
    removed = _rows_of(rows, admission.removed)
    held = (row.agent if row.confirmed else row.former for row in removed)
    former = "" if candidate.confirmed else next(filter(None, held), "")
    _place(session, board, agent, candidate, removed, former)
    drives_out_first = not candidate.confirmed and any(row is rows[0] for row in removed)
    return admission, drives_out_first or claims_first(entries, entry)


def confirm(session: Session, board: BoardRow, challenge: agent_pb2.Evaluation) -> None:
    """Let a stored challenge decide over its checkpoint; nothing for one that is on the board and
    the agent's best no more, or again for the same."""
    agent = store.get_agent(session, challenge.agent, board.name)
    prefix = challenge.checkpoint.prefix
    confirmed = _confirmed(session, board, agent.name)
    found = next((each for each in confirmed if each.prefix == prefix), None)
    if found is None:
        return
    stored = messages.to_bytes(found.evaluation)
    _keep_best(session, agent, max(confirmed, key=lambda each: each.order), challenged=prefix)
    row = session.get(CandidateRow, (board.name, agent.name))
    if row is None or _prefix(row.evaluation) != prefix or row.evaluation == stored:
        return
    row.evaluation, row.score, row.mean, row.confirmed = (
        stored,
        found.score,
        found.evaluation.mean,
        True,
    )
    row.final = found.evaluation.purpose == FINAL
    former, row.former = row.former, ""
    if former and not row.final:
        _give_back(session, board, row, found, former)
    _note_change(board)


def score_again(session: Session, board: BoardRow) -> None:
    """The lowest return has come down: whatever has broken episodes scores less."""
    broke = AgentRow.broken_numbers + AgentRow.broken_code > 0
    for agent in session.scalars(select(AgentRow).where(AgentRow.board == board.name, broke)):
        if agent.best_evaluation is not None:
            best = agent_pb2.Evaluation.FromString(agent.best_evaluation)
            agent.best_score = score_of(board, best)
        row = session.get(CandidateRow, (board.name, agent.name))
        if row is not None:
            row.score = (
                score_of(board, agent_pb2.Evaluation.FromString(row.evaluation)) or row.score
            )


def _keep_best(session: Session, agent: AgentRow, confirmed: Judged, challenged: str) -> None:
    """Keep the policy from which children of `agent` start: the best confirmed one, unless another
    checkpoint promises more."""
    former = _prefix(agent.best_evaluation)
    if agent.best_score is None or (former != challenged and confirmed.score <= agent.best_score):
        return
    agent.best_evaluation, agent.best_score = (
        messages.to_bytes(confirmed.evaluation),
        confirmed.score,
    )
    if former == confirmed.prefix:
        return
    steps = confirmed.evaluation.checkpoint.env_steps
    rounds = select(RoundRow).where(
        RoundRow.board == agent.board,
        RoundRow.agent == agent.name,
        RoundRow.line_env_steps >= steps,
    )
    origin = session.scalars(
        rounds.order_by(RoundRow.line_env_steps, RoundRow.rung).limit(1)
    ).first()
    if origin is not None:
        agent.best_rung, agent.best_cost_s = origin.rung, origin.line_cost_s
        agent.best_env_steps = steps or origin.line_env_steps


def _give_back(
    session: Session, board: BoardRow, row: CandidateRow, found: Judged, former: str
) -> None:
    """Bring back the best confirmed candidate of `former` in the place of `row`, unless that has
    proved to be better.

    Else a lucky evaluation could cost the board the best that is known for sure.
    """
    agent = store.get_agent(session, former, board.name)
    confirmed = _confirmed(session, board, former)
    best = max(confirmed, key=lambda each: each.order, default=None)
    if best is None or found.order > best.order:
        return
    others = [each for each in store.get_candidates(session, board.name) if each is not row]
    admission = competition_of(board.spec).updater.admit(
        store.entries(session, others), best.entry(session, board, agent, store.tick(board))
    )
    if admission.is_admitted:
        _place(session, board, agent, best, [row, *_rows_of(others, admission.removed)], "")


def _place(
    session: Session,
    board: BoardRow,
    agent: AgentRow,
    candidate: Judged,
    removed: Sequence[CandidateRow],
    former: str,
) -> None:
    for row in removed:
        session.delete(row)
    session.flush()  # the agent's own former row leaves before its new one comes
    row = CandidateRow(
        board=board.name,
        agent=agent.name,
        lineage=agent.lineage,
        score=candidate.score,
        mean=candidate.evaluation.mean,
        entry_order=board.clock,
        admit_time=store.now(),
        evaluation=messages.to_bytes(candidate.evaluation),
        confirmed=candidate.confirmed,
        former=former,
    )
    session.add(row)
    _note_change(board)


def _confirmed(session: Session, board: BoardRow, agent: str, prefix: str = "") -> list[Judged]:
    """The challenges of an agent, one for each checkpoint: of several a final, the longest, the
    first by its id."""
    query = select(EvaluationRow.evaluation).where(
        EvaluationRow.board == board.name, EvaluationRow.agent == agent
    )
    wanted = EvaluationRow.challenged == prefix if prefix else EvaluationRow.challenged != ""
    evaluations = [
        agent_pb2.Evaluation.FromString(stored) for stored in session.scalars(query.where(wanted))
    ]
    decisive: dict[str, Judged] = {}
    for evaluation in sorted(
        evaluations,
        key=lambda each: (each.purpose != FINAL, -len(each.returns), each.evaluation_id),
    ):
        score = score_of(board, evaluation)
        if score is not None:
            decisive.setdefault(
                evaluation.checkpoint.prefix, Judged(evaluation, score, confirmed=True)
            )
    return list(decisive.values())


def _rows_of(rows: Iterable[CandidateRow], entries: Iterable[Entry]) -> list[CandidateRow]:
    agents = {entry.agent for entry in entries}
    return [row for row in rows if row.agent in agents]


def _prefix(evaluation: bytes | None) -> str:
    return agent_pb2.Evaluation.FromString(evaluation or b"").checkpoint.prefix


def _note_change(board: BoardRow) -> None:
    board.revision += 1
    board.update_time = store.now()


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
