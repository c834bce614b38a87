"""Price tables: what is done with them without torch, for StockTrading-v0 and `podracer data`.

reading       CSV, Parquet or Arrow -> columns
wall_clock    times with a zone
table         … checked, ticker by ticker in the order of time; tickers on one time axis, gaps as the user says
ex_rights     unadjusted ex-rights dates found and smoothed
canonical     the one Parquet file that a table is stored as
inspection    what is remarkable about a table: gaps, splits, jumps
appending     new bars behind those that there are
synthetic     invented markets

This file imports nothing; pyarrow and talib are imported when a table is opened.
"""

COLUMNS = ("ticker", "time", "open", "high", "low", "close", "volume")
"""Of every table."""
