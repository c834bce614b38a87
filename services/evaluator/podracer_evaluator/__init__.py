"""The evaluator: evaluates policies, inspects environments, exports policies: all work with torch
but training.

server                the process, its settings and rpc methods
session               a learner's stream
checkpoints, export   evaluation of stored policies; policies for use without Podracer, and videos
"""
