"""Which rows of the outbox go together."""

from __future__ import annotations

from podracer.common.v1 import agent_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_orchestrator import outbox
from podracer_orchestrator.board import _together
from podracer_orchestrator.tables import OutboxRow


def row(number: int, evaluations: int = 0, job: str = "a") -> OutboxRow:
    """A row of so many evaluations; 0: of a candidate."""
    if not evaluations:
        return OutboxRow(id=number, job_uid=job, method=outbox.SUBMIT_CANDIDATE, request=b"")
    request = leaderboard_pb2.RecordEvaluationsRequest(
        leaderboard="b",
        evaluations=[
            agent_pb2.Evaluation(evaluation_id=f"{number}-{i}") for i in range(evaluations)
        ],
    )
    stored = request.SerializeToString()
    return OutboxRow(id=number, job_uid=job, method=outbox.RECORD_EVALUATIONS, request=stored)


def groups(*rows: OutboxRow) -> list[list[int]]:
    return [[each.id for each in group] for group in _together(rows)]


def test_evaluations_that_follow_one_another_go_together_and_order_is_kept():
    assert groups(row(1, 2), row(2, 3), row(3), row(4, 1), row(5, 1), row(6), row(7)) == [
        [1, 2],
        [3],
        [4, 5],
        [6],
        [7],
    ]
    assert groups() == []


def test_as_many_as_a_call_may_hold_and_of_one_job():
    most = outbox.MAX_EVALUATIONS
    assert groups(row(1, most - 1), row(2, 1), row(3, 1), row(4, 2)) == [[1, 2], [3, 4]]
    assert groups(row(1, 1), row(2, 1, "other")) == [[1], [2]]


def test_requests_one_after_the_other_are_one_request_with_all_evaluations():
    (group,) = _together([row(1, 2), row(2, 1)])
    together = leaderboard_pb2.RecordEvaluationsRequest.FromString(
        b"".join(each.request for each in group)
    )
    assert together.leaderboard == "b"
    assert [each.evaluation_id for each in together.evaluations] == ["1-0", "1-1", "2-0"]
