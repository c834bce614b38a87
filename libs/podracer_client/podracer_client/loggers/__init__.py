"""A job's evaluations in the experiment trackers that a user has: one run for each agent.

logger        the interface of a destination
follow        reads a job while it runs, or afterwards, and passes its evaluations to the loggers
tensorboard, mlflow, wandb   the destinations; destinations: chooses one by its name
state         a small file with the position of a logger
"""
