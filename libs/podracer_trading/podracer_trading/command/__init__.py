"""The commands that the package adds to `podracer`.

backtest, data   one module a subject; what is heavy is imported when a command runs
"""

from podracer_client.command import HERE, POLICIES, PlacedCommand
from podracer_trading.command import backtest, data

BACKTEST = PlacedCommand(backtest.backtest, POLICIES, after="evaluate")
DATA = PlacedCommand(data.application, HERE, after="context")

__all__ = ["BACKTEST", "DATA"]
