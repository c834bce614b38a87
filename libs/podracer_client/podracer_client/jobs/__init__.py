"""The SDK.

client        `Client`: submits jobs and reads their results
job, watch    `Job`, and `JobWatch`, which follows one
experiments   several jobs of one file
warm_starts   the agents of another job that a new one starts from
"""
