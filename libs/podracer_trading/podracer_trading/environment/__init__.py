"""Trading stocks of a price table: the way from a file to tensors, the broker, and the environment.

market        train, validation and test by date; indicators of each ticker through TA-Lib;
              turbulence of the whole market; all of it as tensors on the device
shared_arrays the arrays of a large market, one copy for the processes of a machine
environment   StockTrading-v0, what its broker does with N × K orders, and a number to rank policies
              by, from daily returns

Every knob is in podracer_trading.info. What needs no torch, from the file
to tickers on one time axis, is podracer_trading.market_data.

pyarrow and talib are imported when a table is opened.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_trading.environment import market, shared_arrays
    from podracer_trading.environment.environment import (
        Broker, Decision, StockTrading, statistic_of,
    )
    from podracer_trading.environment.market import (
        Market, bars_needed, evaluation_bars, indicators_of, prepare, split_bars, traded_splits,
        turbulence_of,
    )
else:
    __all__, __getattr__ = exports(__name__)
