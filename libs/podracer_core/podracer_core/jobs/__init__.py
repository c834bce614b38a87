"""The specification of a job; no torch.

spec          the job; one module per section has its fields, defaults, checks and conversions to
              and from the message. Mistakes are found before the job is created
environment, objective, search, evolution, pod, continuous, warm_start    the sections
messages      conversion of a section to a message and back; checks: gathers mistakes
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""
