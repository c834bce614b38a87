"""The specification of a job; no torch.

spec          the job; one module per section has its fields, defaults and checks. Mistakes are
              found before the job is created
environment, objective, search, evolution, pod, continuous, warm_start    the sections
messages      conversion of sections to messages and back; checks: gathers mistakes
evaluations   what the message of an evaluation counts for
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""
