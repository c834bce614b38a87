"""What an account's values over time say, and how a policy's are recorded.

performance   the usual statistics of daily returns
record        bar by bar: values, holdings, fills; and the files of them
baselines     what a policy is held against
simulation    a stored policy's decisions, recorded (torch)

The first three need NumPy alone. This file imports nothing.
"""
