"""What the validation of a job says of its best candidate: an edge over holding, or the luck of the
best of many."""

from __future__ import annotations

import numpy as np

from podracer_client.policies import Competition, trained_environment
from podracer_core.errors import InvalidInput, NotFound
from podracer_trading.backtest import Edge, edge_over_holding
from podracer_trading.client.backtests import run_backtest
from podracer_trading.client.session import Bring, Evaluator

_HOLDING = "buy_and_hold"


def edge_in_validation(
    competition: Competition | str, evaluator: Evaluator, bring: Bring
) -> Edge | str:
    """Play the candidates through the bars by which the job chose among them; a text says why there
    is no answer."""
    if isinstance(competition, str):
        return competition
    first = competition.folders[0]
    try:
        environment = trained_environment(first)
        bring(first)
        best = run_backtest(evaluator, [first], environment, baselines=(_HOLDING,))
        if best.trained_bars:
            return "none: the policy was trained on the days that selected it"
        others = [run_backtest(evaluator, [each], environment) for each in competition.folders[1:]]
        holding = best.accounts[1].returns
        returns = [each.policy.returns for each in others]
        return edge_over_holding(
            best.policy.returns,
            holding,
            np.reshape(returns, (-1, len(holding))),
            competition.snapshots,
        )
    except (InvalidInput, NotFound) as error:  # the back-test itself may have another table
        return f"not known: {error.message}"
