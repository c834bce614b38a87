"""The learner: the hub of a pod. It leases work, trains cohorts, commits checkpoints and completes with evaluations."""
