"""What cannot be right in a job's `continuous`, `warm_start` and `retrain`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from podracer_core.config.scalars import MAX_SECONDS
from podracer_core.errors import InvalidInput
from podracer_core.jobs.checks import MAX_COUNT, Checks
from podracer_core.jobs.environment_rules import check_environment
from podracer_core.jobs.spec import JobSpec, NamedDataSet, WarmStart

__all__ = ["check_continuous", "check_retrain", "check_warm_start"]

MAX_FOUNDERS = 64
MIN_INTERVAL_S = 1.0
_ALIAS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def check_continuous(check: Checks, spec: JobSpec) -> None:
    """That something can begin a generation, and that the environment of the contest can be one."""
    continuous = spec.continuous
    if continuous is None:
        return
    named = sorted(name for name, file in spec.data.items() if isinstance(file, NamedDataSet))
    if continuous.data_set is not None:
        expected = f"expected one of {', '.join(named)}" if named else "no argument under data has one"
        message = f"{continuous.data_set!r} is no argument with a data set by name (data_set: NAME); {expected}"
        check.that(continuous.data_set in named, "continuous.data_set", message)
    ways = "give a data set by name (data: {table: {data_set: NAME}}), or an interval"
    message = f"would never begin a second generation: {ways}"
    check.that(bool(named) or continuous.interval is not None, "continuous", message)
    if check.positive(continuous.interval, MAX_SECONDS, "continuous.interval") and continuous.interval is not None:
        message = f"expected at least {MIN_INTERVAL_S:g} s, got {continuous.interval!r}"
        check.that(continuous.interval >= MIN_INTERVAL_S, "continuous.interval", message)
    label = "expected a DNS label: lower-case letters, digits and -, at most 63"
    check.that(bool(_ALIAS.fullmatch(continuous.alias)), "continuous.alias", f"{label}; got {continuous.alias[:100]!r}")
    margin_is_right = math.isfinite(continuous.margin) and continuous.margin >= 0.0
    check.that(margin_is_right, "continuous.margin", f"expected 0 or more, got {continuous.margin!r}")
    _check_arguments(check, spec, continuous.contest, "continuous.contest")


def check_warm_start(check: Checks, spec: JobSpec) -> None:
    """Counts, and that a continuous job is not asked to warm up what it warms up itself."""
    warm_start = spec.warm_start
    if isinstance(warm_start, WarmStart):
        check.that(bool(warm_start.job), "warm_start.job", "expected the name of a job")
        check.between(warm_start.candidates, 1, MAX_FOUNDERS, "warm_start.candidates")
    else:
        check.that(len(warm_start) <= MAX_FOUNDERS, "founders", f"expected at most {MAX_FOUNDERS}")
        searched = {share.algorithm for share in spec.search.algorithms}
        for founder in warm_start:
            message = f"{founder.agent} is an agent of {founder.algorithm}, which the job does not search"
            check.that(not searched or founder.algorithm in searched, "founders", message)


def check_retrain(check: Checks, spec: JobSpec) -> None:
    """That the environment in which the best is trained once more can be one."""
    if spec.retrain is None:
        return
    check.positive(spec.retrain.env_steps, MAX_COUNT, "retrain.env_steps")
    _check_arguments(check, spec, spec.retrain.kwargs, "retrain.kwargs")
    contest_is_apart = spec.continuous is None or not spec.retrain.kwargs or bool(spec.continuous.contest)
    message = "is needed beside retrain.kwargs: a challenger would meet the champion where it has been trained"
    check.that(contest_is_apart, "continuous.contest", message)


def _check_arguments(check: Checks, spec: JobSpec, arguments: Mapping[str, Any], field: str) -> None:
    """Arguments in place of the job's own, checked as the environment's; what is wrong with those is told there."""
    if not arguments:
        return
    own = Checks()
    check_environment(own, spec)
    told = {str(violation) for violation in own.violations}
    others = Checks()
    try:
        environment = replace(spec.environment, kwargs={**spec.environment.kwargs, **arguments})
        check_environment(others, replace(spec, environment=environment))
    except InvalidInput as error:
        others.violations += error.violations
    for violation in others.violations:
        if str(violation) not in told:
            check.that(False, violation.field.replace("environment.kwargs", field), violation.message)
