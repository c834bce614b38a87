"""What there is, by name, and how it is described; imports neither torch nor gymnasium.

algorithms, environments, evaluators, fusions   built in and of installed packages (extensions)
built_in                                        finds the descriptions, which stand beside the code
hyperparameters, shared_hyperparameters, ranges what can be set, and searched
spaces, messages                                spaces as plain values; all of it as protobuf messages
"""
