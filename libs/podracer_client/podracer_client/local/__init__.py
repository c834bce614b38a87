"""Everything on one machine, for `podracer run` and `podracer up`.

state_folder, services   the folder with all that lasts; orchestrator and leaderboard as processes over it
run, run_experiment, up  what the commands do with them; foreground is what they share
reading                  a state folder in which nothing runs
evaluator                a private evaluator, for what needs torch
"""
