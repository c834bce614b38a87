"""Training in the caller's own process, as in a notebook: what `import podracer` offers. No server, no service.

environments  an id, a class or a function -> environments
order         the arguments of `train`, checked
breeding      members that differ in hyperparameters, and their children
training      one cohort, from its first step to its result
result        what comes of it: a policy that acts, is evaluated, filmed and saved
reporting     looks, the line of progress
callbacks     what a caller may do on the way
tournament    a job file, run by the services of this machine
"""
