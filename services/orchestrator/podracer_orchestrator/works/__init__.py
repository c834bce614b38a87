"""Pieces of work: those that wait, proposed cohorts, evaluations, and which checkpoints and steps
count."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.works import checkpoints, evaluation_works, works
    from podracer_orchestrator.works.checkpoints import (
        MemberCommit,
        begin_soundly,
        load_checkpoints,
        of_job,
        refuse,
        unjudged_policy,
    )
    from podracer_orchestrator.works.evaluation_works import EvaluationWork, fresh_seeds
    from podracer_orchestrator.works.works import (
        check_evaluations,
        commit_result,
        evaluations_of,
        member_commit,
    )
    from podracer_orchestrator.works.works import (
        MOST_TOLD,
        BudgetLeft,
        Change,
        Stage,
        Work,
        round_of,
    )
else:
    __all__, __getattr__ = exports(__name__)
