"""Work after a job's training: retraining on other data, and continuous jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import EnvironmentSpec
from podracer_core.config import MAX_SECONDS, Seconds
from podracer_core.errors import InvalidInput
from podracer_core.sections import MAX_COUNT, Checks
from podracer_platform.jobs.environment import DataSets, NamedDataSet, check_environment
from podracer_platform.messages import read, write
from podracer_platform.rpc import is_label

MIN_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Continuous:
    """Continuous training: the job makes a new job, a generation, whenever its data change or the
    interval has passed.

    data_set   argument (a key of `data`) whose data set is watched; None: all data sets given by
               name
    interval   seconds between the starts of two generations; None: only on change
    alias      the alias of the champion
    contest    arguments of the environment that compares champion and challenger, in place of the
               job's own
    margin     by how much the challenger's mean must exceed the champion's
    """

    data_set: str | None = None
    interval: Seconds | None = None
    alias: str = "champion"
    contest: Mapping[str, Any] = field(default_factory=dict)
    margin: float = 0.0

    @classmethod
    def from_message(cls, message: job_pb2.Continuous) -> Continuous:
        """Raises InvalidInput for arguments that are no JSON values."""
        return read(cls, message, "continuous")

    def to_message(self) -> job_pb2.Continuous:
        """The inverse of `from_message`."""
        return write(self, job_pb2.Continuous())

    def check(self, check: Checks, environment: EnvironmentSpec, data: DataSets) -> None:
        """Check that a generation can begin, and that the contest's environment is valid."""
        named = sorted(name for name, file in data.items() if isinstance(file, NamedDataSet))
        if self.data_set is not None:
            expected = (
                f"expected one of {', '.join(named)}" if named else "no argument under data has one"
            )
            message = (
                f"{self.data_set!r} is no argument with a data set by name (data_set: "
                f"NAME); {expected}"
            )
            check.that(self.data_set in named, "continuous.data_set", message)
        ways = "give a data set by name (data: {table: {data_set: NAME}}), or an interval"
        message = f"would never begin a second generation: {ways}"
        check.that(bool(named) or self.interval is not None, "continuous", message)
        if check.positive(self.interval, MAX_SECONDS, "continuous.interval"):
            message = f"expected at least {MIN_INTERVAL_S:g} s, got {self.interval!r}"
            check.that(
                self.interval is None or self.interval >= MIN_INTERVAL_S,
                "continuous.interval",
                message,
            )
        label = "expected a DNS label: lower-case letters, digits and -, at most 63"
        check.that(is_label(self.alias), "continuous.alias", f"{label}; got {self.alias[:100]!r}")
        margin_is_right = math.isfinite(self.margin) and self.margin >= 0.0
        check.that(margin_is_right, "continuous.margin", f"expected 0 or more, got {self.margin!r}")
        _check_arguments(check, environment, data, self.contest, "continuous.contest")


@dataclass(frozen=True)
class Retrain:
    """Retraining: after training, the best candidate is trained once more and becomes the job's
    policy.

    kwargs     arguments of the environment in place of the job's own, for example to include the
               validation days
    env_steps  environment steps of the retraining; None: as many as the candidate has taken
    scratch    start from new weights, with the candidate's algorithm and hyperparameters; else from
               its weights
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_steps: int | None = None
    scratch: bool = False

    @classmethod
    def from_message(cls, message: job_pb2.Retrain) -> Retrain:
        """Raises InvalidInput for arguments that are no JSON values."""
        return read(cls, message, "retrain")

    def to_message(self) -> job_pb2.Retrain:
        """The inverse of `from_message`."""
        return write(self, job_pb2.Retrain())

    def check(
        self,
        check: Checks,
        environment: EnvironmentSpec,
        data: DataSets,
        continuous: Continuous | None,
    ) -> None:
        """Check that the environment of the retraining is valid."""
        check.positive(self.env_steps, MAX_COUNT, "retrain.env_steps")
        _check_arguments(check, environment, data, self.kwargs, "retrain.kwargs")
        contest_is_apart = continuous is None or not self.kwargs or bool(continuous.contest)
        message = (
            "is required with retrain.kwargs: else the contest plays in the environment "
            "that retraining used"
        )
        check.that(contest_is_apart, "continuous.contest", message)


def _check_arguments(
    check: Checks,
    environment: EnvironmentSpec,
    data: DataSets,
    arguments: Mapping[str, Any],
    field: str,
) -> None:
    """Check arguments that replace the job's own. Mistakes in the job's own are reported
    elsewhere."""
    if not arguments:
        return
    own, others = Checks(), Checks()
    check_environment(own, environment, data)
    told = {str(violation) for violation in own.violations}
    try:
        changed = replace(environment, kwargs={**environment.kwargs, **arguments})
        check_environment(others, changed, data)
    except InvalidInput as error:
        others.violations += error.violations
    for violation in others.violations:
        if str(violation) not in told:
            check.that(
                False, violation.field.replace("environment.kwargs", field), violation.message
            )
