"""How often a job is said to have reached its target, and a trading policy to have an edge over
holding: falsely, and where it is so.

Targets. Claims, their challenges and the test of these are the orchestrator's own functions; the
database, pods and training are left out. All agents of a job have the same true mean. It brings 50
candidates one after the other, each with the job's 32 episodes; each that passes the target claims
it and is challenged with 100 fresh episodes, until a challenge holds. In a job just below its
target that is a false success, and at most 5 % of such jobs may have one; two standard errors of
the measured share are added to the limit. Returns are in units of their standard deviation; `below`
and `above` say how far the true mean is from the target.

Edges. Invented markets without anything to learn (`podracer data make --strength 0`) are traded by
32 policies of random weights, in a validation of about a year. The best four by the score of
StockTrading-v0 are what a back-test of a job has to judge by. If it says that the first has an edge
over holding, that is false: the limit is as above. Where returns are drawn instead, over four
years, one of the 32 has an excess over holding with the Sharpe ratio that is given and the others
have none. With a Sharpe ratio of 3 at least 90 % have to be found."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from lab.arguments import arguments
from lab.report import Target, finish, print_table, versions
from numpy.typing import NDArray

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.evaluate import EvaluationResult, GreedyEvaluator
from podracer_core.statistics import FALSE_CLAIMS
from podracer_orchestrator.outcomes import TARGET_EPISODES, claim_of, corrected_score
from podracer_orchestrator.tables import JobRow
from podracer_platform.rpc import DEFAULT_PROJECT
from podracer_platform.training_messages import result_to_message
from podracer_trading.backtest import (
    DAYS_A_YEAR,
    SIGNIFICANT,
    Edge,
    daily_returns,
    edge_over_holding,
    sharpe_ratio,
)
from podracer_trading.backtesting import play_baseline
from podracer_trading.client import write_market
from podracer_trading.environment import Decision, StockTrading
from podracer_trading.market_data import SyntheticMarket

Returns = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Returns]
CANDIDATES, EPISODES, BELOW = 50, 32, 0.02
ABOVE = (0.1, 0.2, 0.4)
PARTS = 8
POLICIES, KEPT = 32, 4
SHARPE_RATIOS, FOUND, YEARS = (1.0, 2.0, 3.0), 0.9, 4


def _failures(rate: float) -> Draw:
    """The greatest return but for a part of the episodes, as of a policy that seldom falls."""
    deviation = math.sqrt(rate * (1.0 - rate))
    return lambda generator, shape: (rate - (generator.random(shape) < rate)) / deviation


SHAPES: dict[str, Draw] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "long tail above": lambda generator, shape: generator.exponential(size=shape) - 1.0,
    "long tail below": lambda generator, shape: 1.0 - generator.exponential(size=shape),
    "10 % fail": _failures(0.1),
}
"""Returns with mean 0 and standard deviation 1."""


def main() -> None:
    parser = arguments(__doc__, "100 jobs, 20 markets: under a minute")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--markets", type=int, default=100)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    jobs, markets = (100, 20) if options.quick else (options.jobs, options.markets)
    print(
        versions("numpy"), f"· {jobs} jobs below, {jobs // 4} above, {CANDIDATES} candidates each"
    )
    rows, begin = [], time.perf_counter()
    figures, limits = dict[str, object](), dict[str, Target]()
    most = _most(FALSE_CLAIMS, jobs)
    with ProcessPoolExecutor(options.processes) as pool:
        for shape in SHAPES:
            for distance in (-BELOW, *ABOVE):
                count = jobs if distance < 0 else jobs // 4
                parts = [range(part, count, PARTS) for part in range(PARTS)]
                found = [
                    pair
                    for part in pool.map(partial(_jobs, shape, distance), parts)
                    for pair in part
                ]
                share, claims = (sum(values) / count for values in zip(*found, strict=True))
                where = f"{-distance:g} below" if distance < 0 else f"{distance:g} above"
                rows.append([shape, where, f"{100 * share:.2f} %", f"{claims:.2f}"])
                if distance < 0:
                    limits[f"false successes, {shape}"] = Target(share, most, at_most=True)
                figures[f"{shape}, {where}"] = {"succeeded": share, "claims": claims, "jobs": count}
        header = ["returns", "true mean", "said to have reached it", "claims a job"]
        print_table(f"after {time.perf_counter() - begin:.0f} s", header, rows)
        _count_edges(pool, markets, figures, limits)
    finish("false_claims", figures, limits)


def _most(share: float, count: int) -> float:
    """The share that `count` trials may have, if `share` is the true one."""
    return share + 2.0 * math.sqrt(share * (1.0 - share) / count)


def _jobs(shape: str, distance: float, seeds: range) -> list[tuple[bool, int]]:
    """Of each job whether it succeeds, and its claims."""
    return [_job(SHAPES[shape], distance, seed) for seed in seeds]


def _job(draw: Draw, distance: float, seed: int) -> tuple[bool, int]:
    generator = np.random.default_rng([seed, 28])
    spec = job_pb2.JobSpec(
        seed=seed, objective={"target_return": -distance}, evaluation={"episodes": EPISODES}
    )
    job, heard = JobRow(spec=spec.SerializeToString(), project=DEFAULT_PROJECT), 0
    for returns in draw(generator, (CANDIDATES, EPISODES)):
        if returns.mean() < -distance or not claim_of(job, _evaluation(returns)).claims_target:
            continue
        heard += 1
        challenge = draw(generator, (TARGET_EPISODES,))
        if (
            challenge.mean() >= -distance
            and corrected_score(job, _evaluation(challenge), heard) >= -distance
        ):
            return True, heard
    return False, heard


def _evaluation(returns: Returns) -> agent_pb2.Evaluation:
    numbers = tuple(range(len(returns)))
    return result_to_message(EvaluationResult(tuple(returns.tolist()), numbers, numbers))


def _count_edges(
    pool: ProcessPoolExecutor, markets: int, figures: dict[str, object], limits: dict[str, Target]
) -> None:
    """Print a table, and add to the figures and limits."""
    rows, begin = [], time.perf_counter()
    searches = {
        "invented markets": _market,
        **{f"Sharpe ratio {each:g}": partial(_drawn, each) for each in SHARPE_RATIOS},
    }
    for name, search in searches.items():
        found = [*pool.map(search, range(markets))]
        share, alone = (
            sum(values) / markets
            for values in zip(*((e.is_there, a.is_there) for e, a in found), strict=True)
        )
        independent = float(np.mean([edge.independent_trials for edge, _ in found]))
        ratio = float(np.median([edge.excess_sharpe_ratio for edge, _ in found]))
        rows.append([name, f"{100 * share:.0f} %", f"{100 * alone:.0f} %", ratio, independent])
        found_here = {"found": share, "alone": alone, "independent": independent}
        figures[f"edge, {name}"] = found_here | {"searches": markets}
        if search is _market:
            limits["false edges, invented markets"] = Target(
                share, _most(SIGNIFICANT, markets), at_most=True
            )
    limits[f"edges found, {name}"] = Target(share, FOUND)
    seconds = time.perf_counter() - begin
    header = ["searches", "said to have an edge", "as if it were the only one"]
    print_table(
        f"{markets} searches of {POLICIES} policies each, after {seconds:.0f} s",
        [*header, "excess Sharpe ratio", "independent"],
        rows,
    )


def _market(seed: int) -> tuple[Edge, Edge]:
    """The edge of the best of random policies, and what it would be had no other competed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="false-claims-") as folder:
        table = Path(folder, "prices.parquet")
        write_market(SyntheticMarket(bars=3 * DAYS_A_YEAR, seed=seed, strength=0.0), table)
        splits = {"train_fraction": 0.64, "validation_fraction": 0.36, "score": "sharpe_ratio"}
        environment = StockTrading(
            POLICIES,
            evaluation=True,
            table=str(table),
            indicators=["macd", "rsi"],
            max_stock=1000,
            **splits,
        )
    decisions: list[Decision] = []
    environment.watch = decisions.append
    policies = _Linear.drawn(environment, np.random.default_rng([seed, 29]))
    results = GreedyEvaluator(lambda _: environment, all_alike=True).evaluate(
        policies, [0], block_rows=1
    )
    cash, bars = environment.config.initial_cash, environment.bars
    values = torch.stack([each.value for each in decisions[: len(bars) - 1]]).numpy()
    times = environment.market.times[bars.start : bars.stop]
    returns = [daily_returns(times, np.concatenate([[cash], value])) for value in values.T]
    held = play_baseline("buy_and_hold", environment)
    ranked = np.argsort([-each.lower_bound for each in results])[:KEPT]
    return _both(np.array(returns)[ranked], daily_returns(held.times, held.value))


def _drawn(ratio: float, seed: int) -> tuple[Edge, Edge]:
    """Of returns: one policy has an excess with this Sharpe ratio, the others have none."""
    generator, days = np.random.default_rng([seed, 30]), YEARS * DAYS_A_YEAR
    holding = generator.normal(0.0003, 0.012, days)
    excess = generator.normal(0.0, 0.006, (POLICIES, days))
    excess[0] += 0.006 * ratio / math.sqrt(DAYS_A_YEAR)
    returns = holding + excess
    return _both(returns[np.argsort(-sharpe_ratio(returns))[:KEPT]], holding)


def _both(returns: Returns, holding: Returns) -> tuple[Edge, Edge]:
    others = returns[1:]
    return (
        edge_over_holding(returns[0], holding, others, POLICIES),
        edge_over_holding(returns[0], holding, others[:0], 1),
    )


@dataclass(frozen=True)
class _Linear:
    """Policies whose actions are linear in the observation: `weight` [M, obs, K], `bias` [M, 1,
    K]."""

    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def drawn(cls, environment: StockTrading, generator: np.random.Generator) -> _Linear:
        (size,), (stocks,) = environment.observation_space.shape, environment.action_space.shape
        draw = [
            generator.standard_normal((POLICIES, rows, stocks), np.float32) for rows in (size, 1)
        ]
        return cls(torch.from_numpy(draw[0] / math.sqrt(size)), torch.from_numpy(draw[1]))

    @property
    def members(self) -> int:
        return len(self.weight)

    def greedy(
        self, observation: torch.Tensor, action_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return (observation @ self.weight + self.bias).clamp(-1.0, 1.0)

    def repeat(self, times: int) -> _Linear:
        return self


if __name__ == "__main__":
    main()
