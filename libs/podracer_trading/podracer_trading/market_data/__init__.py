"""Price tables for StockTrading-v0 and `podracer data`; no torch.

columns       their names, without NumPy; the error for a refused table
table         CSV, Parquet or Arrow -> checked tables, ticker by ticker in order of time; tickers on
              one time axis, with the user's rule for gaps
canonical     the Parquet file in which a table is stored, and appending bars to it
inspection    remarkable data in a table: gaps, splits, jumps; unadjusted ex-rights dates,
              smoothed
synthetic     synthetic markets

pyarrow and talib are imported when a table is opened.
"""

from typing import TYPE_CHECKING

from podracer_core.lazy import exports

if TYPE_CHECKING:
    from podracer_trading.market_data.canonical import (
        Provenance, append, prepared, read_provenance, unadjusted, write_canonical,
    )
    from podracer_trading.market_data.columns import COLUMNS, FIELD, refusal, trading_library
    from podracer_trading.market_data.inspection import (
        JUMP_RULE, SPLIT_RULE, ExRightsDate, Inspection, adjusted, find_ex_rights, inspect,
    )
    from podracer_trading.market_data.synthetic import SyntheticMarket, make_market
    from podracer_trading.market_data.table import (
        AlignedBars, PriceTable, align, checked, kept_times, moment, read_index, read_table,
    )
else:
    __all__, __getattr__ = exports(__name__)
