"""The worker: collects transitions for learners. It knows no job and holds no credentials.

server, config          the process, its rpc methods and settings
session, collection     a learner's stream; environments, actor and collector behind it
step_meter              how many steps, how fast
"""
