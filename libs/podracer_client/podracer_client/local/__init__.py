"""Everything on one machine, for `podracer run` and `podracer up`.

state_folder, services   the folder with all durable state; orchestrator and leaderboard as
                         processes over it
run, run_experiment, up  the commands; foreground: their common part
reading                  a state folder without running services
evaluator                a private evaluator, for work that needs torch
"""
