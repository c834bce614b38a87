"""A walk forward: policies that were trained up to later and later days, each acting until the next one takes over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from podracer_client.backtests import POLICY, Account, Backtest
from podracer_core.backtest.record import chained
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.errors import InvalidInput

__all__ = ["Play", "walk_forward"]

Play = Callable[[Sequence[Path], EnvironmentSpec, bool], Backtest]
"""Plays checkpoints in an environment; whether beside what they are held against."""


def walk_forward(folders: Sequence[Path], environments: Sequence[EnvironmentSpec], play: Play) -> Backtest:
    """One account of all policies: each begins where the one before ends, with its value in cash, and ends on the last
    day by which the next one was selected. What they are held against is played once, from the first day to the last.

    Raises InvalidInput for policies that are not in the order of time, or whose environments do not say by date when
    their selection ended.
    """
    ends = _selection_ends(environments)
    windows: list[Backtest] = []
    for number, (folder, environment) in enumerate(zip(folders, environments, strict=True)):
        changes = dict(environment.kwargs)
        if number:
            account = windows[-1].policy.record
            changes |= {"evaluation_start": _text(account.times[-1]), "initial_cash": float(account.value[-1])}
        if number + 1 < len(folders):
            changes["evaluation_end"] = ends[number + 1]
        windows.append(play([folder], replace(environment, kwargs=changes), False))
    record = chained([window.policy.record for window in windows])
    dates = {"evaluation_start": _text(record.times[0]), "evaluation_end": _text(record.times[-1])}
    whole = play(folders[-1:], replace(environments[-1], kwargs={**environments[-1].kwargs, **dates}), True)
    if not np.array_equal(whole.policy.record.times, record.times):
        raise InvalidInput("the policies were trained with tables of other days; --data gives all of them the same")
    return Backtest(whole.header, (Account(POLICY, record), *whole.accounts[1:]), tuple(windows))


def _selection_ends(environments: Sequence[EnvironmentSpec]) -> list[str]:
    """By which day each policy was selected; the first one's does not matter."""
    ends = [str(each.kwargs.get("validation_end") or each.kwargs.get("train_end") or "") for each in environments]
    for number, (before, end) in enumerate(itertools.pairwise(ends), 2):
        if not end:
            raise InvalidInput(f"policy {number} does not say by date when its validation ended: validation_end does")
        if end <= before:
            raise InvalidInput(
                f"policy {number} was selected by {end}, the one before it by {before}: a walk forward needs them in "
                "the order of time"
            )
    return ends


def _text(moment: np.datetime64) -> str:
    """As the environment takes dates."""
    return str(moment.astype("datetime64[s]")).replace("T", " ")
