"""The learner: the hub of a pod. It leases work, trains cohorts, commits checkpoints and completes
with evaluations.

server, config, loop     the process and its settings; lease, work, complete, lease again
lease, round, fusion     a held lease; TRAIN; several learners
workers, evaluators      rollouts; evaluations and inspections
peers                    channels to the other processes of the pod; finding workers
checkpoints, user_files  agents' checkpoints; the files of environments
background               long tasks
"""
