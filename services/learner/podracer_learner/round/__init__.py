"""A round of training.

setup, initial_agents            the beginning: networks and environments, sizes, members' first
                                 states
train                            the training
checkpoint_committer, reports    checkpoints and reports
access                           access for other threads
"""
