"""A round of training without any server: collect, update, evaluate, keep the best. The learner
service adds leases.

plan        the plan of a round and its time by phase; the number of environments of an agent
source      the source of rollouts: this process, or workers; collecting ahead
evaluation_backend  the evaluation, in this process or by an evaluator, also of policies that come
                    from another process
evaluation_process  the evaluation in a process beside training
member_states    a member's first state: resumed, copied, perturbed or fused; environments' states
                 by member; snapshots with their evaluations, and each member's best ones
evaluation_policy   from the budget and the known results to the next orders
selection   looks, candidates, the target, by phases
session     the loop; several learners of one cohort, fused at the end of each epoch

    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    source = InProcessSource(Collector(environment, algorithm.actor, seeds), algorithm)
    backend = InProcessBackend(partial(make_vec_environment, spec, evaluation=True))
    plan = RoundPlan(duration_s=10, target=475, statistic="mean")
    session = TrainingSession(algorithm, source, backend, plan)
    while not session.finished:
        session.step()
    outcomes = session.conclude()
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_core.training import evaluation_backend, plan, source
    from podracer_core.training.evaluation_backend import (
        EvaluationAnswer, EvaluationBackend, EvaluationOrder, InProcessBackend, PolicyEvaluation,
        evaluate_order,
    )
    from podracer_core.training.evaluation_policy import Budget, EvaluationCosts, EvaluationPolicy
    from podracer_core.training.evaluation_process import ProcessBackend
    from podracer_core.training.member_states import (
        Contender, EnvironmentState, Judgement, MemberGroups, Moment, ParentKind, Snapshot, inherit,
        member_environment_states, resume, resume_environments, stack_states, take_snapshot,
        unstack_states,
    )
    from podracer_core.training.plan import (
        TOTAL, Occasions, Phases, RoundPlan, Statistic, fitting_algorithm, fitting_envs,
        fitting_horizon, processor_seconds, require_room, usual_envs_per_member,
    )
    from podracer_core.training.selection import RoundView, Selection
    from podracer_core.training.session import (
        EpochFusion, FusionTransport, MemberOutcome, Progress, TrainingSession,
    )
    from podracer_core.training.source import (
        MOST_AHEAD, InProcessSource, OverlappingSource, PaceTrial, RolloutSource, WorldBreak,
        first_breaks,
    )
else:
    __all__, __getattr__ = exports(__name__)
