"""Statistics of an account's values over time, and the records of policies; NumPy alone. This file imports nothing.

performance   the usual statistics of daily returns; months and drawdowns
record        bar by bar: values, holdings, fills; their files and messages; one account from several

A policy's decisions are played by podracer_core.evaluate.backtesting.
"""
