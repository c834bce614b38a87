"""The worker: collects transitions for learners. It knows no job and holds no credentials.

server    the process, its settings and rpc methods
session   a learner's stream; environments, actor and collector behind it
"""
