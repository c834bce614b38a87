"""The evaluator: evaluates policies, inspects environments, exports policies: all work with torch
but training.

server        the process, its settings and rpc methods
session       a learner's stream
checkpoints   stored policies: evaluated, back-tested, filmed, and as files for use without Podracer
"""
