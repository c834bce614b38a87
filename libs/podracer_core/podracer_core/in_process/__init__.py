"""Training in the caller's own process, as in a notebook: the API of `import podracer`. No server,
no service.

environments  an id, a class or a function -> environments
order         the arguments of `train`, checked
breeding      members that differ in hyperparameters, and their children
training      one cohort, from its first step to its result
result        the result: a policy that acts and can be evaluated, filmed, saved and trained further
reporting     looks, the line of progress, what has broken
callbacks     hooks for the caller during training
tournament    a job file, run by the services of this machine
"""
