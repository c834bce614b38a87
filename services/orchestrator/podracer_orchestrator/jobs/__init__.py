"""Jobs: rows and states, the plan from the spec, files and founders, listing."""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_orchestrator.jobs import founders, jobs, listing, quotas, submission
    from podracer_orchestrator.jobs.budget import (
        Budget,
        BudgetSplit,
        Grant,
        Remainder,
        RoundLimits,
        Usage,
        cut_round,
        remainder,
        used_part,
    )
    from podracer_orchestrator.jobs.founders import environment_of
    from podracer_orchestrator.jobs.jobs import NewJob, newest_best
    from podracer_orchestrator.jobs.listing import parse_filter
    from podracer_orchestrator.jobs.quotas import OperatorFile
    from podracer_orchestrator.jobs.plan import MAX_AUTOMATIC_MEMBERS, JobPlan, PodKind, plan_of
    from podracer_orchestrator.jobs.quotas import FORKED, Quotas, require
    from podracer_orchestrator.jobs.state import (
        ACTIVE_STATES,
        FINAL_STATES,
        LIVE_STATES,
        TRAINING_STATES,
        JobOutcome,
        JobSignal,
        JobState,
        next_state,
    )
    from podracer_orchestrator.jobs.submission import changed, known_description
else:
    __all__, __getattr__ = exports(__name__)
