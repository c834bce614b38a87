"""Statistics of an account's values over time, and the records of policies; NumPy alone. This file
imports nothing.

performance   the usual statistics of daily returns; months and drawdowns
edge          whether the best of many policies is better than holding, or the best by chance
record        bar by bar: values, holdings, fills; their files and messages; one account from
              several

A policy's decisions are played by podracer_trading.backtesting.
"""
