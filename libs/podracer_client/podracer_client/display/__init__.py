"""The display of jobs in a terminal or as JSON.

displays, table, comparison        live: log lines, JSON lines, a table; the jobs of an experiment
messages, summary                  a job's figures for `--json`, and at its end
leaderboard, catalogue             candidates and hyperparameters as text
output                             columns, JSON objects, numbers as text
"""
