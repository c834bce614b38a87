"""SubmitCandidate, RecordEvaluations and ProposeCohort: by themselves, or as steps of an
Exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.errors import InvalidInput
from podracer_leaderboard import evaluations, messages, proposals, submissions
from podracer_leaderboard.changes import Changes
from podracer_platform.database import Database

MAX_STEPS = 1000


class Call(NamedTuple):
    """How a request is checked, and carried out over a session; whether its answer concerns
    watchers."""

    check: Callable[[Any], None]
    run: Callable[..., Any]
    is_news: Callable[[Any], bool]


_CALLS: Mapping[str, Call] = {
    "evaluations": Call(evaluations.check, evaluations.record, evaluations.has_challenge),
    "candidate": Call(submissions.check, submissions.submit, lambda request: True),
    "cohort": Call(proposals.check, proposals.propose, lambda request: False),
}


class Exchanges:
    """Answers them."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self._changes = changes

    async def call(self, kind: str, request: Any) -> Any:
        """Carry out one request: `evaluations`, `candidate` or `cohort`."""
        (answer,) = await self._carry_out([(kind, request)])
        return answer

    async def exchange(
        self, request: leaderboard_pb2.ExchangeRequest
    ) -> leaderboard_pb2.ExchangeResponse:
        """Carry out all steps or none. Raises what the first one that is refused does by itself."""
        messages.check_leaderboard(request.leaderboard)
        if len(request.steps) > MAX_STEPS:
            raise InvalidInput.of(
                "steps", f"expected at most {MAX_STEPS}, got {len(request.steps)}"
            )
        steps = [_step(request, index) for index in range(len(request.steps))]
        answers = zip(steps, await self._carry_out(steps), strict=True)
        return leaderboard_pb2.ExchangeResponse(
            answers=[
                leaderboard_pb2.ExchangeResponse.Answer(**{kind: answer})
                for (kind, _), answer in answers
            ]
        )

    async def _carry_out(self, steps: Sequence[tuple[str, Any]]) -> Sequence[Any]:
        for kind, step in steps:
            _CALLS[kind].check(step)
        try:
            return await self._database.write(
                lambda session: [_CALLS[kind].run(session, step) for kind, step in steps]
            )
        finally:
            if any(_CALLS[kind].is_news(step) for kind, step in steps):
                self._changes.ring()


def _step(request: leaderboard_pb2.ExchangeRequest, index: int) -> tuple[str, Any]:
    """The kind of a step, and its request."""
    kind = request.steps[index].WhichOneof("request")
    if kind is None:
        raise InvalidInput.of(f"steps[{index}]", "expected evaluations, candidate or cohort")
    step = getattr(request.steps[index], kind)
    if step.leaderboard != request.leaderboard:
        raise InvalidInput.of(
            f"steps[{index}]", f"is of {step.leaderboard}, expected {request.leaderboard}"
        )
    return kind, step
