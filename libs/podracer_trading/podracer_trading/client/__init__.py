"""Market data and back-tests.

data_import                     a price table -> a canonical file, a data set of a server
session                         policies played through the days by an evaluator; whether a job's
                                best has an edge over holding
backtest_words, backtest_page   the results as text and JSON; as a page with figures
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_trading.client.backtest_page import write_backtest
    from podracer_trading.client.backtest_words import backtest_json, backtest_text, validation_text
    from podracer_trading.client.data_import import (
        ImportRequest, import_market_data, inspection_text, write_market,
    )
    from podracer_trading.client.session import (
        BacktestPlan, edge_in_validation, play_backtest, price_file,
    )
else:
    __all__, __getattr__ = exports(__name__)
