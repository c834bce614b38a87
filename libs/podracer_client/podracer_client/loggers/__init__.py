"""A job's evaluations in the experiment trackers that a user has: one run for each agent.

logger                       the interface of a destination; feeds and chooses them
tensorboard, mlflow, wandb   the destinations
"""
