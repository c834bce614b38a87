"""The evaluator: judges policies, inspects environments, exports policies. What needs torch and is no training.

server, config                    the process, its rpc methods and settings
session, evaluation, episode_counter   a learner's stream; judging its policies
checkpoints, export               the same of stored policies; policies for use without Podracer
"""
