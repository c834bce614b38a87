"""How often a job is said to have reached its target: falsely, and where it has.

Claims, their challenges and the test of these are the orchestrator's own functions; the database, pods and training are
left out. All agents of a job have the same true mean. It brings 50 candidates one after the other, each with the job's
32 episodes; each that passes the target claims it and is challenged with 100 fresh episodes, until a challenge holds.
In a job just below its target that is a false success, and at most 5 % of such jobs may have one; two standard errors
of the measured share are added to the limit.

Returns are in units of their standard deviation; `below` and `above` say how far the true mean is from the target.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray
from report import Target, finish, print_table, versions

from podracer.common.v1 import agent_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.evaluate.result import EvaluationResult, result_to_message
from podracer_orchestrator.jobs.plan import plan_of
from podracer_orchestrator.outcomes.claims import FALSE_CLAIMS, TARGET_EPISODES, corrected_score
from podracer_orchestrator.outcomes.objective import claim_of
from podracer_orchestrator.tables import JobRow

Returns = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Returns]
CANDIDATES, EPISODES, BELOW = 50, 32, 0.02
ABOVE = (0.1, 0.2, 0.4)
PARTS = 8


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 jobs: under a minute")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    jobs = 100 if options.quick else options.jobs
    print(versions("numpy"), f"· {jobs} jobs below, {jobs // 4} above, {CANDIDATES} candidates each")
    rows, begin = [], time.perf_counter()
    figures, limits = dict[str, object](), dict[str, Target]()
    most = FALSE_CLAIMS + 2.0 * math.sqrt(FALSE_CLAIMS * (1.0 - FALSE_CLAIMS) / jobs)
    with ProcessPoolExecutor(options.processes) as pool:
        for shape in SHAPES:
            for distance in (-BELOW, *ABOVE):
                count = jobs if distance < 0 else jobs // 4
                parts = [range(part, count, PARTS) for part in range(PARTS)]
                found = [pair for part in pool.map(partial(_jobs, shape, distance), parts) for pair in part]
                share, claims = (sum(values) / count for values in zip(*found, strict=True))
                where = f"{-distance:g} below" if distance < 0 else f"{distance:g} above"
                rows.append([shape, where, f"{100 * share:.2f} %", f"{claims:.2f}"])
                if distance < 0:
                    limits[f"false successes, {shape}"] = Target(share, most, at_most=True)
                figures[f"{shape}, {where}"] = {"succeeded": share, "claims": claims, "jobs": count}
    header = ["returns", "true mean", "said to have reached it", "claims a job"]
    print_table(f"after {time.perf_counter() - begin:.0f} s", header, rows)
    finish("false_claims", figures, limits)


def _jobs(shape: str, distance: float, seeds: range) -> list[tuple[bool, int]]:
    """Of each job whether it succeeds, and its claims."""
    return [_job(SHAPES[shape], distance, seed) for seed in seeds]


def _job(draw: Draw, distance: float, seed: int) -> tuple[bool, int]:
    generator = np.random.default_rng([seed, 28])
    spec = job_pb2.JobSpec(seed=seed, objective={"target_return": -distance}, evaluation={"episodes": EPISODES})
    job, heard = JobRow(spec=spec.SerializeToString()), 0
    plan = plan_of(job)
    for returns in draw(generator, (CANDIDATES, EPISODES)):
        if returns.mean() < -distance or not claim_of(plan, _evaluation(returns)).claims_target:
            continue
        heard += 1
        challenge = draw(generator, (TARGET_EPISODES,))
        if challenge.mean() >= -distance and corrected_score(job, _evaluation(challenge), heard) >= -distance:
            return True, heard
    return False, heard


def _evaluation(returns: Returns) -> agent_pb2.Evaluation:
    numbers = tuple(range(len(returns)))
    return result_to_message(EvaluationResult(tuple(returns.tolist()), numbers, numbers))


if __name__ == "__main__":
    main()
