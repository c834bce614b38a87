"""A job as frozen dataclasses: the same words as in a job file (DESIGN §11), defaults filled in.

Building one checks nothing but types; `podracer_core.jobs.validation.validate` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.messages import environment_from_message, environment_to_message
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.jobs.continuous import Continuous, Retrain
from podracer_core.jobs.environment import DataSets, data_from_message, data_to_message
from podracer_core.jobs.evolution import Evolution
from podracer_core.jobs.messages import read, write
from podracer_core.jobs.objective import EvaluationPlan, Objective
from podracer_core.jobs.pod import Pod
from podracer_core.jobs.search import Search
from podracer_core.jobs.warm_start import Beginnings, Founder, founders_to_messages

Part = TypeVar("Part")


@dataclass(frozen=True)
class JobSpec:
    """What a user asks for.

    name         a DNS label: lower-case letters, digits and `-`
    seed         of everything
    weight       share of a pool that several jobs use, relative to the others
    data         what the environment's constructor gets as paths, besides `environment.kwargs`
    labels       free words for the user's own use
    continuous   present: the job trains nothing itself, but makes one that does whenever its data change
    warm_start   agents of another job that the first ones start from
    retrain      present: the best candidate is trained once more before the job ends
    """

    name: str
    environment: EnvironmentSpec
    objective: Objective
    search: Search = field(default_factory=Search)
    evolution: Evolution = field(default_factory=Evolution)
    pod: Pod = field(default_factory=Pod)
    evaluation: EvaluationPlan = field(default_factory=EvaluationPlan)
    seed: int = 0
    weight: float = 1.0
    data: DataSets = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    continuous: Continuous | None = None
    warm_start: Beginnings = ()
    retrain: Retrain | None = None

    @classmethod
    def from_message(cls, message: job_pb2.JobSpec) -> JobSpec:
        """With the defaults filled in, values unchecked. Raises InvalidInput naming each field that has no form."""
        violations: list[FieldViolation] = []

        def part(field: str, decode: Callable[[], Part]) -> Part | None:
            try:
                return decode()
            except InvalidInput as error:
                violations.extend(error.violations or [FieldViolation(field, error.message)])
                return None

        environment = part("environment", lambda: environment_from_message(message.environment))
        search = part("search", lambda: Search.from_message(message.search))
        data = part("data", lambda: data_from_message(message))
        continuous = part("continuous", lambda: Continuous.from_message(message.continuous))
        retrain = part("retrain", lambda: Retrain.from_message(message.retrain))
        founders = part("founders", lambda: tuple(map(Founder.from_message, message.founders)))
        if message.environment.data:
            violations.append(FieldViolation("environment.data", "stands in the job's own `data`"))
        if violations or environment is None or search is None or data is None or founders is None:
            raise InvalidInput("; ".join(map(str, violations)), violations=violations)
        return read(
            cls,
            message,
            name=message.display_name,
            environment=environment,
            objective=Objective.from_message(message.objective),
            search=search,
            evolution=Evolution.from_message(message.evolution),
            pod=Pod.from_message(message.pod),
            evaluation=EvaluationPlan.from_message(message.evaluation),
            data=data,
            labels=dict(message.labels),
            continuous=continuous if message.HasField("continuous") else None,
            warm_start=founders,
            retrain=retrain if message.HasField("retrain") else None,
        )

    def to_message(self) -> job_pb2.JobSpec:
        """The inverse of `from_message`. Raises InvalidInput while its files are not uploaded."""
        message = job_pb2.JobSpec(
            display_name=self.name,
            environment=environment_to_message(self.environment),
            objective=self.objective.to_message(),
            search=self.search.to_message(),
            evolution=self.evolution.to_message(),
            pod=self.pod.to_message(),
            evaluation=self.evaluation.to_message(),
            labels=dict(self.labels),
            founders=founders_to_messages(self.warm_start),
            continuous=None if self.continuous is None else self.continuous.to_message(),
            retrain=None if self.retrain is None else self.retrain.to_message(),
        )
        data_to_message(self.data, message)
        return write(self, message)
