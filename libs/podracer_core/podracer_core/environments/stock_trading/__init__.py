"""Trading stocks of a price table: the way from a file to tensors, the broker, and the environment.

settings      every knob
reading       CSV, Parquet or Arrow -> columns
table         … checked, ticker by ticker in the order of time
ex_rights     unadjusted ex-rights dates found and smoothed
indicators    of each ticker through TA-Lib
turbulence    of the whole market
alignment     tickers on one time axis, gaps as the user says
split         train, validation and test by date
market        all of it, as tensors on the device
orders        what a broker does with N × K orders
scores        what a back-test says of a policy
environment   StockTrading-v0

This file imports nothing; pyarrow and talib are imported when a table is opened.
"""
