"""A paper-trading loop: a served policy decides bar by bar, and an account that exists on paper
alone follows it.

    podracer serve JOB &
    python examples/paper_trading.py examples/trading.yaml --from 2025-01-01

goes through the bars that there are; with --follow it goes on whenever the table has become longer.

The job file says what the market is: table, costs, fills. StockTrading-v0 itself makes the
observations and fills the orders, so the account goes as the back-test's does, bar for bar."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from podracer_client import PolicyClient
from podracer_platform.jobs.job_file import load_job_file
from podracer_trading.environment.environment import StockTrading


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", type=Path, help="the job file of the policy")
    parser.add_argument(
        "--from", dest="start", required=True, help="the first day on which it decides"
    )
    parser.add_argument(
        "--follow", action="store_true", help="wait for further bars; ends with Ctrl-C"
    )
    parser.add_argument("--address", default="127.0.0.1:7710", help="of the policy server")
    parser.add_argument("--token-file", default="runs/tokens/client")
    parser.add_argument(
        "--policy", default="", help="name of the policy; unset: the only one that is served"
    )
    options = parser.parse_args()
    market = read_market(options.job)
    state = market.initial_state(torch.zeros(1, dtype=torch.int64))
    state["bar"].fill_(int(np.searchsorted(market.market.times, np.datetime64(options.start))))
    with PolicyClient(options.address, token_file=options.token_file) as policies:
        while True:
            bar = int(state["bar"])
            observation = torch.empty(1, market.observation_space.shape[0])
            market.observe(state, observation)
            action = policies.act(observation.numpy(), policy=options.policy)
            # what it has decided is filled at the next bar, once there is one
            if bar + 1 == len(market.market.times):
                if not options.follow:
                    break
                market = wait_for_bars(options.job, market)
            before = state["shares"].clone()
            state, _, _ = market.dynamics(state, torch.from_numpy(action))
            tell(market, state, state["shares"] - before)


def read_market(job_file: Path) -> StockTrading:
    """The market of the job as it is now. What was learned from the training days does not change
    with later ones."""
    job = load_job_file(job_file)
    files = {name: str(path) for name, path in job.data.items()}
    return StockTrading(
        1, evaluation=True, **{**job.environment.kwargs, **files, "evaluation_split": "all"}
    )


def wait_for_bars(job_file: Path, market: StockTrading) -> StockTrading:
    """The market once its table has become longer."""
    while len((longer := read_market(job_file)).market.times) == len(market.market.times):
        time.sleep(10.0)
    return longer


def tell(market: StockTrading, state: dict[str, torch.Tensor], traded: torch.Tensor) -> None:
    """A line a bar: the account at its close, and what was filled at its open."""
    when = market.market.times[int(state["bar"])].astype("datetime64[m]")
    fills = [
        f"{shares:+.0f} {ticker}"
        for ticker, shares in zip(market.market.tickers, traded[:, 0].tolist(), strict=True)
        if shares
    ]
    print(
        f"{when}  value {float(state['value']):14,.2f}  cash {float(state['cash']):14,.2f}  "
        f"{', '.join(fills)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
