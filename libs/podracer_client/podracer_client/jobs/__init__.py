"""The SDK.

client        `Client`: submits jobs and reads their results
job           `Job`, one job
history       `History`, the one view of a job; following: reads what is new into it
score         the number by which evaluations rank
experiments   several jobs of one file
warm_starts   the agents of another job that a new one starts from
"""
