"""What an account's value over time says: statistics, and how certain they are. NumPy alone.

statistics   returns, volatility, Sharpe, Sortino and Calmar ratio, drawdown
bootstrap    intervals of such a number, from one history

This file imports nothing.
"""
