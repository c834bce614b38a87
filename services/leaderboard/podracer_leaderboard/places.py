"""Places on the board: taken by a candidate, confirmed by a challenge, given back if that falls
short.

Of a checkpoint that was challenged only the challenge counts, from wherever it is known: a place is
a function of what is stored, whatever the order in which it came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer_core.evolution.updater import Admission, Entry, EvaluationSummary, claims_first
from podracer_core.sections.objective import MIN_EPISODES
from podracer_leaderboard import messages, store
from podracer_leaderboard.competition import competition_of
from podracer_leaderboard.tables import AgentRow, BoardRow, CandidateRow, EvaluationRow, RoundRow
from podracer_platform.jobs.evaluations import counted

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
