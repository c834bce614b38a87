"""Algorithms, environments and extensions by name, with their descriptions; imports neither torch
nor gymnasium.

algorithms, environments                  built in, described beside their code, and of installed
                                          packages
extensions                                classes that packages offer: evaluators, fusions, …
hyperparameters, shared_hyperparameters   hyperparameters and their search ranges
recipes                                   the defaults of a kind of task on a device
spaces, messages                          spaces as plain values; all of it as protobuf messages
"""
