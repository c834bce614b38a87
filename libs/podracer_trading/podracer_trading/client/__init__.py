"""Market data and back-tests.

data_import                                      a price table -> a canonical file, a data set of a
                                                 server
session, backtests                               policies played through the days by an evaluator
validation                                       whether a job's best has an edge over holding
backtest_text, backtest_page, backtest_figures   its results
"""
