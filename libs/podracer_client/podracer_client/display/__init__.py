"""The display of jobs in a terminal or as JSON.

displays, table, comparison        live: log lines, JSON lines, a table; the jobs of an experiment
following                          chooses a display and feeds it
snapshot, messages, summary        a job's figures: while it runs, for `--json`, at its end
leaderboard, catalogue             candidates and hyperparameters as text
output, numbers, score             columns and JSON objects, numbers, the name of a score
"""
