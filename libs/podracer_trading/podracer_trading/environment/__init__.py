"""Trading stocks of a price table: the way from a file to tensors, the broker, and the environment.

indicators    of each ticker through TA-Lib; turbulence of the whole market
split         train, validation and test by date
market        all of it, as tensors on the device
environment   StockTrading-v0, and what its broker does with N × K orders
statistic     a number to rank policies by, from daily returns

Every knob is in podracer_trading.info. What needs no torch, from the file
to tickers on one time axis, is podracer_trading.market_data.

pyarrow and talib are imported when a table is opened.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_trading.environment import indicators
    from podracer_trading.environment.environment import Broker, Decision, StockTrading
    from podracer_trading.environment.indicators import bars_needed, indicators_of, turbulence_of
    from podracer_trading.environment.market import Market, prepare
    from podracer_trading.environment.split import evaluation_bars, split_bars, traded_splits
    from podracer_trading.environment.statistic import statistic_of
else:
    __all__, __getattr__ = exports(__name__)
