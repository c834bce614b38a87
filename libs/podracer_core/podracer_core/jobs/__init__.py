"""What a user asks for; no torch.

spec         the job as frozen dataclasses, with every default
validation   what cannot be right, before anything is created
job_file     job.yaml -> JobSpec
"""
