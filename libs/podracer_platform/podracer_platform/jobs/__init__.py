"""The specification of a job; no torch.

spec          the job; beside the sections of `podracer_core.sections`, a module per section has its
              fields, defaults and checks. Mistakes are found before the job is created
environment, continuous, warm_start    these sections
evaluations   what the message of an evaluation counts for
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""
