"""The evaluator: judges policies, inspects environments, exports policies. What needs torch and is no training.

server                the process, its settings and rpc methods
session, evaluation   a learner's stream; judging its policies
checkpoints, export   the same of stored policies; policies for use without Podracer
"""
