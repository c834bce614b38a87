"""Trading as a plug-in: nothing of Podracer imports this package, its entry points name it.

info            StockTrading-v0 and its options, without torch
environment     from a price table to tensors, the broker, and the environment
market_data     price tables
backtest        the record of an account, and its statistics
backtesting     accounts played bar by bar, and the evaluator `backtest`
stored_policies the evaluator's answer to Backtest: stored policies beside baselines
client          data sets, back-tests of jobs, and their pages
command         `podracer backtest` and `podracer data`
"""
