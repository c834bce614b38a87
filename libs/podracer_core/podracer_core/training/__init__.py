"""A round of training without any server: collect, update, evaluate, keep the best. The learner service adds leases.

plan        what a round is to do
sizes       how many environments an agent has
source      where rollouts come from: this process, or workers; whether some are collected ahead
epochs      several learners of one cohort, fused at the end of each epoch; those of one torch.distributed group
evaluation_backend  what evaluates: this process, or an evaluator
snapshots   a member at one moment, and what was said of it; each member's best snapshots
member_states    a member's first state: resumed, copied, perturbed or fused; environments' states by member
evaluation_costs    when evaluating is worth its time
evaluation_orders   what it is asked
selection   screening, candidates, the target
phases      where the time of a round goes
messages    what a pod's services tell each other
session     the loop

    algorithm = PPO(cohort, environment.observation_space, environment.action_space)
    source = InProcessSource(Collector(environment, algorithm.actor, seeds), algorithm)
    backend = InProcessBackend(partial(make_vec_environment, spec, evaluation=True))
    session = TrainingSession(algorithm, source, backend, RoundPlan(duration_s=10, target=475, statistic="mean"))
    while not session.finished:
        session.step()
    outcomes = session.conclude()
"""
