"""What a user asks for; no torch.

spec          the job, made of one module for each of its sections: fields, defaults, checks, both ways to the message;
              what cannot be right is found before anything is created
environment, objective, search, evolution, pod, continuous, warm_start    the sections
messages      how a section becomes a message and back; checks: how mistakes are gathered
job_file      job.yaml -> JobSpec; matrix, experiment: a file that makes several jobs
"""
