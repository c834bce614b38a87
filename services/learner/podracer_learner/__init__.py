"""The learner: the hub of a pod. It leases work, trains cohorts, commits checkpoints and completes
with evaluations.

server, config, loop    the process and its settings; lease, work, complete, lease again
lease, round, workers, evaluators, fusion    a held lease; TRAIN; rollouts; evaluations; several
                                             learners
checkpoints, user_files, peers, background   agents' checkpoints, environments' files, channels,
                                             long tasks
"""
