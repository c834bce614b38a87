"""Everything on one machine: the state folder, and the processes that `podracer run` and `podracer up` look after.

state_folder   where everything that lasts is kept, and the lock on it
run_folder     a short private folder for sockets, gone at the end
process        one process, started again when it dies
services       orchestrator and leaderboard together
evaluator      a private evaluator for `evaluate` and `export`
interrupts     Ctrl-C: once to stop well, twice to stop now
"""
