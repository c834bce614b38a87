"""Messages between a pod's services about a cohort, its environment and its evaluations."""

from __future__ import annotations

import math
import time
from contextlib import closing, nullcontext
from dataclasses import asdict

from podracer.common.v1 import agent_pb2, cohort_pb2
from podracer.evaluator.v1 import evaluator_service_pb2
from podracer_core.algorithms import CohortConfig, MemberConfig
from podracer_core.catalogue import (
    AlgorithmInfo,
    EnvironmentSpec,
    HyperparameterValue,
    find_algorithm,
    treatment,
)
from podracer_core.environments import inspect_environment, isolation_proof
from podracer_core.errors import MOST_LETTERS, FieldViolation, InvalidInput, PodracerError, plain
from podracer_core.evaluate import EvaluationResult, numbers, result_from_json
from podracer_core.sections import MAX_MEMBERS
from podracer_core.training import WorldBreak
from podracer_platform.messages import (
    description_to_message,
    hyperparameters_from_message,
)
from podracer_platform.rpc import limits


def cohort_from_message(message: cohort_pb2.CohortSpec) -> CohortConfig:
    """The cohort to build an algorithm or an actor for.

    Raises InvalidInput for an unknown algorithm or hyperparameter, a value out of its range, and
    for members that cannot be stacked: too many, another algorithm, or other values of what a
    cohort shares."""
    info = find_algorithm(message.algorithm)
    if len(message.members) > MAX_MEMBERS:
        problem = f"has {len(message.members)} of them, expected at most {MAX_MEMBERS}"
        raise InvalidInput(
            f"cohort.members {problem}", violations=[FieldViolation("cohort.members", problem)]
        )
    members: list[MemberConfig] = []
    shared: dict[str, HyperparameterValue] = {}
    for index, agent in enumerate(message.members):
        if agent.algorithm not in ("", message.algorithm):
            raise _refused(
                index, "algorithm", f"is {agent.algorithm}, the cohort's is {message.algorithm}"
            )
        values = _typed(info, hyperparameters_from_message(agent.hyperparameters))
        own = {
            name: value
            for name, value in values.items()
            if info.hyperparameter(name).scope == "member"
        }
        common = {name: value for name, value in values.items() if name not in own}
        if index == 0:
            shared = common
        elif common != shared:
            names = sorted(
                name for name in {*common, *shared} if common.get(name) != shared.get(name)
            )
            raise _refused(
                index, "hyperparameters", f"{', '.join(names)} differ from the first member's"
            )
        numbers = {name: float(value) for name, value in own.items()}  # type: ignore[arg-type]
        members.append(MemberConfig(agent.name, agent.seed, numbers))
    cohort = CohortConfig(message.algorithm, tuple(members), shared)
    cohort.shared_values(info)
    cohort.member_values(info)
    return cohort


def _typed(
    info: AlgorithmInfo, values: dict[str, HyperparameterValue]
) -> dict[str, HyperparameterValue]:
    """Values of the right types: a whole number may arrive as a real one, as search spaces have no
    types."""
    typed = dict(values)
    for name, value in values.items():
        knob = info.hyperparameter(name)
        if knob.kind == "int" and isinstance(value, float) and value.is_integer():
            typed[name] = int(value)
        knob.check(typed[name])
    return typed


def _refused(index: int, field: str, problem: str) -> InvalidInput:
    path = f"cohort.members[{index}].{field}"
    return InvalidInput(
        f"{path} {problem}", violations=[FieldViolation(path, problem)], reason="COHORT_MISMATCH"
    )


def inspected(spec: EnvironmentSpec, timeout_s: float) -> evaluator_service_pb2.InspectResponse:
    """Start the environment in a process of its own and describe it. Errors as of
    `inspect_environment`.

    Whether its worlds share state is proved meanwhile.
    """
    proof, deadline = isolation_proof(spec), time.monotonic() + timeout_s
    with nullcontext() if proof is None else closing(proof.start()):
        try:
            found = inspect_environment(spec, timeout_s)
        except PodracerError:
            if proof is None:
                raise
            proof.close()  # its worlds may have been in the way
            found = inspect_environment(spec, timeout_s)
        shares_state = proof is not None and proof.shares_state(deadline=deadline)
    texts = found.preparation, treatment(found.observation_space, found.observation_origin)
    preparation = "\n".join(filter(None, texts))
    for name, path in spec.data.items():  # a path on this machine, meaningless on another one
        preparation = preparation.replace(str(path), name)
    description = description_to_message(
        spec, found.observation_space, found.action_space, found.max_episode_steps,
        preparation=preparation, start_s=found.start_s, step_s=found.step_s, waits=found.waits,
        shares_state=shares_state, deterministic_evaluation=found.deterministic_evaluation,
        observation_origin=found.observation_origin,
    )  # fmt: skip
    if description.ByteSize() > limits.SPEC_BYTES:
        raise InvalidInput(
            f"the spaces of the environment take {description.ByteSize()} bytes to describe, at "
            f"most {limits.SPEC_BYTES} are possible: give all elements of a large box the same "
            "bounds"
        )
    warnings = [plain(warning)[:MOST_LETTERS] for warning in found.warnings]
    return evaluator_service_pb2.InspectResponse(description=description, warnings=warnings)


def break_to_message(found: WorldBreak) -> agent_pb2.WorldBreak:
    """The fields have the same names."""
    return agent_pb2.WorldBreak(**asdict(found))


def break_from_message(message: agent_pb2.WorldBreak) -> WorldBreak:
    """The inverse of `break_to_message`."""
    return WorldBreak(message.member, message.numbers, message.text, message.traceback)


def result_to_message(result: EvaluationResult) -> agent_pb2.Evaluation:
    """The numbers of an Evaluation; the caller adds agent, purpose and time. Raises InvalidInput
    for numbers that are not finite."""
    values = numbers(result)
    single = [values[name] for name in ("mean", "standard_deviation", "lower_bound", "upper_bound")]
    if not all(map(math.isfinite, (*result.returns, *single))):
        raise InvalidInput(
            "an evaluation's returns and statistics must be finite numbers", reason="BAD_EVALUATION"
        )
    return agent_pb2.Evaluation(
        **values | {"first_break": plain(result.first_break)[:MOST_LETTERS]}
    )


def result_from_message(message: agent_pb2.Evaluation) -> EvaluationResult:
    """The inverse of `result_to_message`. Raises InvalidInput for lists of different lengths."""
    return result_from_json(
        {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    )
