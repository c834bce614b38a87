"""Worlds that break, and what they change for a job: a return that their episodes count with,
agents that cannot be first, and an event for the first break of each kind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy.orm import Session

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_orchestrator import outbox
from podracer_orchestrator.jobs import LIVE_STATES, JobState
from podracer_orchestrator.stored_messages import best_of, spec_of
from podracer_orchestrator.tables import JobRow, MemberRow
from podracer_orchestrator.transactions import job_topic, touch
from podracer_orchestrator.works import MOST_TOLD
from podracer_platform.jobs import broken_episodes
from podracer_platform.rpc import last_part

# the part of the fastest algorithm's speed below which another one of the job is too slow beside it
_SLOW = 0.1


def hear(session: Session, job: JobRow, evaluation: agent_pb2.Evaluation, now: datetime) -> bool:
    """Tell of a break, and keep the lowest return of an intact episode. Returns whether that has
    come down."""
    if broken_episodes(evaluation):
        numbers = evaluation.broken_number_episodes > 0
        tell(
            session,
            job,
            evaluation.agent,
            agent_pb2.WorldBreak(numbers=numbers, text=evaluation.first_break),
            now,
        )
    lowest = min(evaluation.returns, default=math.inf)
    if not math.isfinite(lowest) or (job.lowest_return is not None and lowest >= job.lowest_return):
        return False
    job.lowest_return = lowest
    return True


def hear_training(
    session: Session,
    job: JobRow,
    members: list[MemberRow],
    breaks: Iterable[agent_pb2.WorldBreak],
    now: datetime,
) -> None:
    """Tell of the breaks that a learner has reported."""
    for each in breaks:
        if 0 <= each.member < len(members):
            tell(session, job, members[each.member].agent, each, now)


def tell(
    session: Session, job: JobRow, agent: str, found: agent_pb2.WorldBreak, now: datetime
) -> None:
    """Record the first break of its kind."""
    environment = spec_of(job).environment
    message = (
        f"{environment.id or environment.entry_point} broke with {last_part(agent)}: "
        f"{found.text or 'an episode of an evaluation'}; such an episode has no return, and "
        "ranking counts it with the lowest return of the job"
    )
    kind, traceback = {"what": "numbers" if found.numbers else "code"}, found.traceback[-MOST_TOLD:]
    outbox.record_once(
        session, job, "WORLD_BROKE", message, kind, now=now, subject=agent, traceback=traceback
    )


def exclude(
    session: Session, job: JobRow, found: Iterable[leaderboard_pb2.Exclusion], now: datetime
) -> bool:
    """Keep the leaderboard's word on the agents that cannot be first. Returns whether the job's
    best is one of them: then it has none."""
    excluded = {each.agent: each.reason for each in found}
    if JobState(job.state) not in LIVE_STATES or excluded.keys() == (job.excluded or {}).keys():
        return False
    for agent, reason in excluded.items():
        message = f"{last_part(agent)} cannot be first: {reason}"
        outbox.record_once(
            session, job, "AGENT_EXCLUDED", message, {"agent": agent}, now=now, subject=agent
        )
    job.excluded, best = excluded, best_of(job)
    if best is None or best.agent not in excluded or job.time_to_target_s is not None:
        return False
    job.best = job.best_score = None
    job.best_is_confirmed = job.best_is_full = False
    touch(session, job_topic(job.uid))
    return True


def note_speed(
    session: Session,
    job: JobRow,
    algorithm: str,
    env_steps_per_second: float,
    round_s: float,
    now: datetime,
) -> None:
    """Keep the speed of an algorithm's round, and tell of one that is too slow beside the
    fastest."""
    if not env_steps_per_second > 0.0:
        return
    job.speeds = {**(job.speeds or {}), algorithm: env_steps_per_second}
    most, fastest = max((speed, name) for name, speed in job.speeds.items())
    for slow, speed in job.speeds.items():
        if speed < _SLOW * most:
            message = (
                f"{slow} takes {speed:,.0f} steps/s, {fastest} {most:,.0f}: in rounds of "
                f"{round_s:.3g} s agents of {slow} are judged after much less training; give all "
                f"of them rounds in steps (evolution.round.env_steps), or {slow} smaller networks "
                "or a job of its own"
            )
            outbox.record_once(
                session, job, "ALGORITHM_SLOW", message, {"algorithm": slow}, now=now
            )
