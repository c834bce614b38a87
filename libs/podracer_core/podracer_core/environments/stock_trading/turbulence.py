"""How unusual a day is for the whole market.

Kritzman and Li 2010, "Skulls, Financial Turbulence, and Risk Management", eq. 1: the squared Mahalanobis distance of
the day's returns from those of a trailing window. About K where days are normal and the window much longer than K.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["turbulence_of"]

_BLOCK_NUMBERS = 1 << 22  # of the windows or of the covariances that are worked on at a time


def turbulence_of(close: NDArray[np.float64], traded: NDArray[np.bool_], window: int) -> NDArray[np.float64]:
    """[T] from closes [T, K] (0 before a ticker's first bar), NaN where fewer than `window` returns came before.

    On each bar those tickers count that traded on it and on half of the window's bars.
    """
    bars, tickers = close.shape
    first = window + 1  # the first bar has no return
    turbulence = np.full(bars, np.nan)
    if bars <= first:
        return turbulence
    returns = np.zeros((bars, tickers))
    is_known = close[:-1] > 0
    np.divide(close[1:], close[:-1], out=returns[1:], where=is_known)
    returns[1:] -= is_known
    bars_traded = np.lib.stride_tricks.sliding_window_view(traded[1:-1], window, axis=0).sum(axis=2)
    counts = traded[first:] & (2 * bars_traded >= window)
    trailing = np.lib.stride_tricks.sliding_window_view(returns[1:-1], window, axis=0)  # [T - first, K, window]
    numbers = (bars - first) * tickers * max(tickers, window)
    for block in np.array_split(np.arange(bars - first), -(-numbers // _BLOCK_NUMBERS)):
        mean = trailing[block].mean(axis=2)
        centered = (trailing[block] - mean[:, :, None]) * counts[block][:, :, None]
        covariance = centered @ centered.transpose(0, 2, 1) / (window - 1)
        distance = (returns[first + block] - mean) * counts[block]
        # The pseudoinverse leaves out the tickers that do not count, and whatever else has no variance.
        inverse = np.linalg.pinv(covariance, rcond=1e-10, hermitian=True)
        turbulence[first + block] = np.einsum("ti,tij,tj->t", distance, inverse, distance)
    return turbulence
