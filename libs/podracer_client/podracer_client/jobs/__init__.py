"""The SDK.

client        `Client`: submits jobs and reads what became of them
job, watch    `Job`, and `JobWatch` that follows one
experiments   several jobs of one file
warm_starts   the agents of another job that a new one starts from
"""
