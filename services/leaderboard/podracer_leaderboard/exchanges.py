"""Exchange: results, evaluations and requests for cohorts together, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.orm import Session

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.database import Database
from podracer_core.errors import InvalidInput
from podracer_leaderboard import evaluations, messages, proposals, submissions
from podracer_leaderboard.changes import Changes

MAX_STEPS = 1000

_CHECKS: Mapping[str, Callable[[Any], None]] = {
    "evaluations": evaluations.check_evaluations,
    "candidate": submissions.check_submission,
    "cohort": proposals.check_request,
}
_CALLS: Mapping[str, Callable[[Session, Any], Any]] = {
    "evaluations": evaluations.record,
    "candidate": submissions.submit,
    "cohort": proposals.propose,
}


class Exchanges:
    """Answers Exchange."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def exchange(self, request: leaderboard_pb2.ExchangeRequest) -> leaderboard_pb2.ExchangeResponse:
        """Carry out all steps or none. Raises what the first one that is refused does by itself."""
        messages.check_leaderboard(request.leaderboard)
        if len(request.steps) > MAX_STEPS:
            raise InvalidInput.of("steps", f"expected at most {MAX_STEPS}, got {len(request.steps)}")
        steps = [_step(request, index) for index in range(len(request.steps))]

        def operation(session: Session) -> leaderboard_pb2.ExchangeResponse:
            answers = ({kind: _CALLS[kind](session, step)} for kind, step in steps)
            return leaderboard_pb2.ExchangeResponse(
                answers=[leaderboard_pb2.ExchangeResponse.Answer(**answer) for answer in answers]
            )

        try:
            response = await self._database.write(operation)
        finally:
            self._changes.ring()
        for answer in response.answers:
            if answer.HasField("candidate"):
                submissions.note(answer.candidate)
            elif answer.HasField("cohort"):
                proposals.note(answer.cohort)
        return response


def _step(request: leaderboard_pb2.ExchangeRequest, index: int) -> tuple[str, Any]:
    """The kind of a step and its request, checked."""
    kind = request.steps[index].WhichOneof("request")
    if kind is None:
        raise InvalidInput.of(f"steps[{index}]", "expected evaluations, candidate or cohort")
    step = getattr(request.steps[index], kind)
    if step.leaderboard != request.leaderboard:
        raise InvalidInput.of(f"steps[{index}]", f"is of {step.leaderboard}, expected {request.leaderboard}")
    _CHECKS[kind](step)
    return kind, step
