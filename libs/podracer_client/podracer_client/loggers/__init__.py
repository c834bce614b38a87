"""A job's evaluations in the experiment trackers that a user has: one run for each agent.

logger        what a destination has to do
follow        reads a job while it runs, or afterwards, and tells the loggers
tensorboard, mlflow, wandb   the destinations; destinations: the one that a name stands for
state         the small file that says how far a logger has come
"""
