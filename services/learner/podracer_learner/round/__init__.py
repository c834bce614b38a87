"""A round of training.

setup, plan, initial_agents      how it begins: networks and environments, sizes, members' first states
train                            what it does
checkpoint_committer, reports    what it leaves and tells
access                           what other threads may ask of it
"""
