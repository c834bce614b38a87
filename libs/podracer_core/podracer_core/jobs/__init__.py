"""What a user asks for; no torch.

spec          the job, made of one module for each of its sections: fields, defaults, checks, both ways to the message
environment, objective, search, evolution, pod, continuous, warm_start    the sections
messages      how a section becomes a message and back; checks: how mistakes are gathered
validation    what cannot be right, before anything is created
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""
