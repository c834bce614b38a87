"""Everything on one machine, for `podracer run` and `podracer up`.

state_folder, services   the folder with all durable state; the processes over it
run, run_experiment      the commands that run jobs
foreground               their common part, and `podracer up`
"""
