"""Sections of a job with their fields, defaults and checks: `environment` and `data`, as far as
they can be checked without starting the environment; `continuous` and `retrain`; `warm_start`; and
what an evaluation's message counts for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import (
    ArgumentInfo,
    EnvironmentSpec,
    HyperparameterValue,
    Space,
    StoredFile,
    described_environment,
    find_environment,
)
from podracer_core.config import MAX_SECONDS, Seconds, did_you_mean
from podracer_core.errors import InvalidInput
from podracer_core.sections import MAX_COUNT, Checks, Search
from podracer_core.statistics import student_t_half_width
from podracer_platform.attachments import MAX_DATA_BYTES, MAX_PACKED_BYTES
from podracer_platform.messages import (
    files_from_messages,
    files_to_messages,
    hyperparameter_to_message,
    hyperparameters_from_message,
    read,
    write,
)
from podracer_platform.rpc import is_label

_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    dict: "a mapping",
}


@dataclass(frozen=True)
class NamedDataSet:
    """A data set of the project by name, with its content at the job's creation.

    file   that content; None until a server has looked it up. Two with the same name are equal
    """

    name: str
    file: StoredFile | None = field(default=None, compare=False)


DataSets = Mapping[str, str | StoredFile | NamedDataSet]
"""Data sets by argument of the environment's constructor: paths of files here, uploaded files in
the store, or names.

In a job file a path, or `{data_set: NAME}`.
"""


def data_from_message(message: job_pb2.JobSpec) -> DataSets:
    """The files and named data sets of a job. Raises InvalidInput for a malformed file."""
    files = files_from_messages(message.data)
    return files | {
        name: NamedDataSet(data_set, files.get(name))
        for name, data_set in message.data_sets.items()
    }


def data_to_message(data: DataSets, message: job_pb2.JobSpec) -> None:
    """The inverse of `data_from_message`. Raises InvalidInput for a file that has not been
    uploaded."""
    files = {
        name: file.file if isinstance(file, NamedDataSet) else file for name, file in data.items()
    }
    uploaded = files_to_messages({name: file for name, file in files.items() if file is not None})
    for name, reference in uploaded.items():
        message.data[name].CopyFrom(reference)
    message.data_sets.update(
        {name: file.name for name, file in data.items() if isinstance(file, NamedDataSet)}
    )


def check_environment(check: Checks, environment: EnvironmentSpec, data: DataSets) -> Space | None:
    """Check the environment; returns its action space if that is known without starting it."""
    if not environment.id:
        return None  # a user's own entry point: known after inspection
    try:
        info = find_environment(environment.id)
    except InvalidInput as error:
        check.violations += error.violations
        return None
    if described_environment(environment.id) is not None:
        _check_arguments(check, environment, data, info.arguments)
    return None if environment.kwargs or data else info.action_space  # arguments may change it


def check_files(check: Checks, environment: EnvironmentSpec, data: DataSets) -> None:
    """Check sizes, and that no argument has two values."""
    if environment.code is not None:
        check.between(
            environment.code.size_bytes, 1, MAX_PACKED_BYTES, "environment.code.size_bytes"
        )
    for name, file in data.items():
        if isinstance(file, NamedDataSet):
            check.that(
                is_label(file.name), f"data.{name}", f"{file.name[:100]!r} is no data set's name"
            )
        if isinstance(file, StoredFile):
            check.between(file.size_bytes, 0, MAX_DATA_BYTES, f"data.{name}.size_bytes")
    try:
        replace(environment, data=dict.fromkeys(data, ""))
    except InvalidInput as error:
        check.violations += error.violations


def _check_arguments(
    check: Checks, environment: EnvironmentSpec, data: DataSets, arguments: Iterable[ArgumentInfo]
) -> None:
    """Check names, and types of values by the catalogue's defaults; inspection finds other
    mistakes."""
    known = {argument.name: argument for argument in arguments}
    files = {name for name, argument in known.items() if argument.is_file}
    for name, value in environment.kwargs.items():
        field = f"environment.kwargs.{name}"
        if name in files:
            check.that(
                name in data,
                field,
                f"is a file: name it under data, such as {_example(known[name])}",
            )
        elif check.that(
            name in known, field, f"unknown argument; {_advice(name, known.keys() - files)}"
        ):
            problem = _value_problem(known[name].default, value)
            check.that(not problem, field, problem)
    for name in filter(str.isidentifier, data):
        check.that(
            name in files,
            f"data.{name}",
            f"{environment.id} takes no such file; {_advice(name, files)}",
        )
    for name, argument in known.items():
        if argument.required and name not in data and name not in environment.kwargs:
            field = f"data.{name}" if argument.is_file else f"environment.kwargs.{name}"
            check.that(
                False, field, f"is missing: {argument.meaning}; such as {_example(argument)}"
            )


def _example(argument: ArgumentInfo) -> str:
    return f"{{{argument.name}: {argument.example}}}"


def _advice(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return "it has none"
    return did_you_mean(name, names, f"expected one of {', '.join(names)}", most=2)


def _value_problem(default: object, value: Any) -> str:
    """Why a value does not have the type of `default`; a default of None allows any type."""
    kind = type(default)
    if kind not in _WORDS or _fits(kind, value):
        return ""
    return f"expected {_WORDS[kind]}, such as {_written(default)}; got {_written(value)}"


def _fits(kind: type, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float:
        return is_number
    if kind is int:
        return is_number and value == int(value)
    if kind is tuple:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping if kind is dict else kind)


def _written(value: object) -> str:
    """The value as in a job file, cut if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"


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
        _check_replaced_arguments(check, environment, data, self.contest, "continuous.contest")


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
        _check_replaced_arguments(check, environment, data, self.kwargs, "retrain.kwargs")
        contest_is_apart = continuous is None or not self.kwargs or bool(continuous.contest)
        message = (
            "is required with retrain.kwargs: else the contest plays in the environment "
            "that retraining used"
        )
        check.that(contest_is_apart, "continuous.contest", message)


def _check_replaced_arguments(
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


MAX_FOUNDERS = 64


@dataclass(frozen=True)
class WarmStart:
    """What the first agents start from: the best `candidates` of another job's leaderboard, or the
    `checkpoint` in a folder."""

    job: str = ""
    candidates: int = 1
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Founder:
    """An agent of another job that a new one starts from: its checkpoint and its specification.

    Of an uploaded checkpoint, `agent` is the artifact's name, and `prefix` and `manifest_sha256`
    are the archive's."""

    agent: str
    prefix: str
    manifest_sha256: str
    algorithm: str
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)

    @classmethod
    def from_message(cls, message: evolution_pb2.Founder) -> Founder:
        """Raises InvalidInput for a hyperparameter without a value."""
        checkpoint = message.checkpoint
        values = hyperparameters_from_message(message.hyperparameters)
        return cls(
            message.agent, checkpoint.prefix, checkpoint.manifest_sha256, message.algorithm, values
        )

    def to_message(self) -> evolution_pb2.Founder:
        """The inverse of `from_message`."""
        return evolution_pb2.Founder(
            agent=self.agent,
            checkpoint=agent_pb2.CheckpointReference(
                prefix=self.prefix, manifest_sha256=self.manifest_sha256
            ),
            algorithm=self.algorithm,
            hyperparameters={
                key: hyperparameter_to_message(value) for key, value in self.hyperparameters.items()
            },
        )


Beginnings = WarmStart | tuple[Founder, ...]
"""The starts of the first agents: as requested, or as looked up on the other job's leaderboard."""


def founders_to_messages(warm_start: Beginnings) -> list[evolution_pb2.Founder]:
    """The founders as messages. Raises InvalidInput for a warm start that has not been looked
    up."""
    if isinstance(warm_start, WarmStart):
        raise InvalidInput(
            f"warm_start: {warm_start.job or warm_start.checkpoint} has to be looked up first"
        )
    return [founder.to_message() for founder in warm_start]


def check_warm_start(check: Checks, warm_start: Beginnings, search: Search) -> None:
    """Check counts, and that the job searches the founders' algorithms."""
    if isinstance(warm_start, WarmStart):
        is_one = bool(warm_start.job) != (warm_start.checkpoint is not None)
        check.that(
            is_one,
            "warm_start",
            "expected either a job, by its name, or a checkpoint, by its folder",
        )
        check.between(warm_start.candidates, 1, MAX_FOUNDERS, "warm_start.candidates")
        return
    check.that(len(warm_start) <= MAX_FOUNDERS, "founders", f"expected at most {MAX_FOUNDERS}")
    searched = {share.algorithm for share in search.algorithms}
    for founder in warm_start:
        message = (
            f"{founder.agent} is an agent of {founder.algorithm}, which the job does not search"
        )
        check.that(not searched or founder.algorithm in searched, "founders", message)


CONFIRMING = (agent_pb2.EVALUATION_PURPOSE_CHALLENGE, agent_pb2.EVALUATION_PURPOSE_FINAL)
"""The purposes of evaluations with fresh seeds, which have not selected their policy."""


def broken_episodes(message: agent_pb2.Evaluation | leaderboard_service_pb2.Agent) -> int:
    """The number of episodes whose world broke."""
    return message.broken_number_episodes + message.broken_code_episodes


def counted(evaluation: agent_pb2.Evaluation, lowest: float | None) -> agent_pb2.Evaluation | None:
    """Returns, mean and bounds for ranking and targets: each broken episode counts with `lowest`,
    the lowest return of an intact episode that is known of the job, or this evaluation's own lowest
    if that is lower. None if no episode was intact: it is never ranked."""
    broken, returns = broken_episodes(evaluation), list(evaluation.returns)
    if broken and not returns:
        return None
    if not broken or evaluation.deterministic:
        return evaluation
    returns += [min(returns if lowest is None else [lowest, *returns])] * broken
    mean = statistics.fmean(returns)
    half = student_t_half_width(statistics.stdev(returns), len(returns))
    return agent_pb2.Evaluation(
        returns=returns, mean=mean, lower_bound=mean - half, upper_bound=mean + half
    )
