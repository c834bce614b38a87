"""JobSpec as a protobuf message, and back; what a message leaves unset becomes the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from google.protobuf import duration_pb2

from podracer.common.v1 import agent_pb2, evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.environments.spec import StoredFile
from podracer_core.catalogue.messages import (
    arguments_from_message,
    environment_from_message,
    environment_to_message,
    files_from_messages,
    files_to_messages,
    hyperparameter_from_message,
    hyperparameter_to_message,
    hyperparameters_from_message,
)
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.jobs.spec import (
    AlgorithmShare,
    Beginnings,
    Choice,
    Continuous,
    DataSets,
    Dimension,
    EvaluationPlan,
    Evolution,
    Fixed,
    Founder,
    Fusion,
    IntegerUniform,
    JobSpec,
    LogUniform,
    NamedDataSet,
    Objective,
    Pod,
    PodCount,
    Resources,
    Retrain,
    Round,
    Search,
    Uniform,
    WarmStart,
)

Part = TypeVar("Part")

__all__ = [
    "evolution_from_message",
    "objective_from_message",
    "pod_from_message",
    "search_from_message",
    "seconds_from_duration",
    "seconds_to_duration",
    "spec_from_message",
    "spec_to_message",
]

_STATISTICS = {
    "lower_bound": evolution_pb2.TARGET_STATISTIC_LOWER_BOUND,
    "mean": evolution_pb2.TARGET_STATISTIC_MEAN,
}
_SCHEDULERS = {
    "tournament": evolution_pb2.SCHEDULER_TOURNAMENT,
    "generational": evolution_pb2.SCHEDULER_GENERATIONAL,
}
_SELECTIONS = {
    "tournament": evolution_pb2.SELECTION_TOURNAMENT,
    "truncation": evolution_pb2.SELECTION_TRUNCATION,
}
_LAYOUTS = {
    "auto": job_pb2.POD_LAYOUT_UNSPECIFIED,
    "split": job_pb2.POD_LAYOUT_SPLIT,
    "fused": job_pb2.POD_LAYOUT_FUSED,
}


def seconds_to_duration(seconds: float) -> duration_pb2.Duration:
    """A Duration, to the nanosecond."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def seconds_from_duration(duration: duration_pb2.Duration) -> float:
    """Seconds of a Duration."""
    return duration.seconds + duration.nanos * 1e-9


def spec_to_message(spec: JobSpec) -> job_pb2.JobSpec:
    """The whole job. `spec_from_message` is its inverse. Raises InvalidInput while its files are not uploaded."""
    return job_pb2.JobSpec(
        display_name=spec.name,
        environment=environment_to_message(spec.environment),
        objective=_objective_to_message(spec.objective),
        search=_search_to_message(spec.search),
        evolution=_evolution_to_message(spec.evolution),
        pod=_pod_to_message(spec.pod),
        evaluation=job_pb2.EvaluationSpec(episodes=spec.evaluation.episodes),
        seed=spec.seed,
        weight=spec.weight,
        data=files_to_messages(_files(spec.data)),
        labels=dict(spec.labels),
        data_sets={name: file.name for name, file in spec.data.items() if isinstance(file, NamedDataSet)},
        founders=_founders_to_messages(spec.warm_start),
        continuous=None if spec.continuous is None else _continuous_to_message(spec.continuous),
        retrain=None if spec.retrain is None else _retrain_to_message(spec.retrain),
    )


def spec_from_message(message: job_pb2.JobSpec) -> JobSpec:
    """A job with its defaults filled in, values unchecked. Raises InvalidInput naming each field that has no form."""
    violations: list[FieldViolation] = []

    def part(field: str, read: Callable[[], Part], fallback: Part) -> Part:
        try:
            return read()
        except InvalidInput as error:
            violations.extend(error.violations or [FieldViolation(field, error.message)])
            return fallback

    evaluation = EvaluationPlan(message.evaluation.episodes or EvaluationPlan().episodes)
    environment = part("environment", lambda: environment_from_message(message.environment), None)
    search = part("search", lambda: search_from_message(message.search), Search())
    data: dict[str, str | StoredFile | NamedDataSet] = {}
    files: dict[str, StoredFile] = part("data", lambda: files_from_messages(message.data), {})
    data |= files
    data |= {name: NamedDataSet(data_set, files.get(name)) for name, data_set in message.data_sets.items()}
    continuous = part("continuous", lambda: _continuous_from_message(message), None)
    retrain = part("retrain", lambda: _retrain_from_message(message), None)
    founders: tuple[Founder, ...] = part("founders", lambda: tuple(map(_founder_from_message, message.founders)), ())
    unsupported = {
        "evaluation.evaluator": bool(message.evaluation.evaluator),
    }
    violations += [
        FieldViolation(field, "is not supported by this server yet") for field, set_ in unsupported.items() if set_
    ]
    if message.environment.data:
        violations.append(FieldViolation("environment.data", "stands in the job's own `data`"))
    if violations or environment is None:
        raise InvalidInput("; ".join(map(str, violations)), violations=violations)
    return JobSpec(
        name=message.display_name,
        environment=environment,
        objective=objective_from_message(message.objective),
        search=search,
        evolution=evolution_from_message(message.evolution),
        pod=pod_from_message(message.pod),
        evaluation=evaluation,
        seed=message.seed,
        weight=message.weight or 1.0,
        data=data,
        labels=dict(message.labels),
        continuous=continuous,
        warm_start=founders,
        retrain=retrain,
    )


def _files(data: DataSets) -> dict[str, str | StoredFile]:
    """Those that are files, and those names that a server has looked up."""
    files = {name: file.file if isinstance(file, NamedDataSet) else file for name, file in data.items()}
    return {name: file for name, file in files.items() if file is not None}


def _continuous_to_message(continuous: Continuous) -> job_pb2.Continuous:
    message = job_pb2.Continuous(data_set=continuous.data_set or "", alias=continuous.alias, margin=continuous.margin)
    if continuous.interval is not None:
        message.interval.CopyFrom(seconds_to_duration(continuous.interval))
    if continuous.contest:
        message.contest.update(dict(continuous.contest))
    return message


def _continuous_from_message(spec: job_pb2.JobSpec) -> Continuous | None:
    if not spec.HasField("continuous"):
        return None
    message = spec.continuous
    return Continuous(
        data_set=message.data_set or None,
        interval=seconds_from_duration(message.interval) if message.HasField("interval") else None,
        alias=message.alias or Continuous().alias,
        contest=arguments_from_message(message.contest, "continuous.contest"),
        margin=message.margin,
    )


def _retrain_to_message(retrain: Retrain) -> job_pb2.Retrain:
    message = job_pb2.Retrain(env_steps=retrain.env_steps or 0, scratch=retrain.scratch)
    message.kwargs.update(dict(retrain.kwargs))
    return message


def _retrain_from_message(spec: job_pb2.JobSpec) -> Retrain | None:
    if not spec.HasField("retrain"):
        return None
    message = spec.retrain
    kwargs = arguments_from_message(message.kwargs, "retrain.kwargs")
    return Retrain(kwargs, message.env_steps or None, message.scratch)


def _founders_to_messages(warm_start: Beginnings) -> list[evolution_pb2.Founder]:
    if isinstance(warm_start, WarmStart):
        raise InvalidInput(f"warm_start: the candidates of {warm_start.job} have to be looked up first")
    return [
        evolution_pb2.Founder(
            agent=founder.agent,
            checkpoint=agent_pb2.CheckpointReference(prefix=founder.prefix, manifest_sha256=founder.manifest_sha256),
            algorithm=founder.algorithm,
            hyperparameters={key: hyperparameter_to_message(value) for key, value in founder.hyperparameters.items()},
        )
        for founder in warm_start
    ]


def _founder_from_message(message: evolution_pb2.Founder) -> Founder:
    return Founder(
        message.agent,
        message.checkpoint.prefix,
        message.checkpoint.manifest_sha256,
        message.algorithm,
        hyperparameters_from_message(message.hyperparameters),
    )


def _objective_to_message(objective: Objective) -> evolution_pb2.Objective:
    message = evolution_pb2.Objective(
        target_return=objective.target_return,
        statistic=_STATISTICS[objective.statistic],
        max_env_steps=objective.max_env_steps or 0,
    )
    if objective.max_duration is not None:
        message.max_duration.CopyFrom(seconds_to_duration(objective.max_duration))
    if objective.max_cost is not None:
        message.max_cost.CopyFrom(seconds_to_duration(objective.max_cost))
    return message


def objective_from_message(message: evolution_pb2.Objective) -> Objective:
    """When to stop."""
    return Objective(
        target_return=message.target_return if message.HasField("target_return") else None,
        statistic="mean" if message.statistic == evolution_pb2.TARGET_STATISTIC_MEAN else "lower_bound",
        max_env_steps=message.max_env_steps or None,
        max_duration=seconds_from_duration(message.max_duration) if message.HasField("max_duration") else None,
        max_cost=seconds_from_duration(message.max_cost) if message.HasField("max_cost") else None,
    )


def _search_to_message(search: Search) -> evolution_pb2.Search:
    return evolution_pb2.Search(
        algorithms=[
            evolution_pb2.AlgorithmShare(algorithm=share.algorithm, share=share.share) for share in search.algorithms
        ],
        space=[_dimension_to_message(dimension) for dimension in search.space],
    )


def search_from_message(message: evolution_pb2.Search) -> Search:
    """What to search. Raises InvalidInput for a dimension without a range."""
    shares = tuple(AlgorithmShare(share.algorithm, share.share or 1.0) for share in message.algorithms)
    return Search(shares, tuple(_dimension_from_message(dimension) for dimension in message.space))


def _dimension_to_message(dimension: Dimension) -> evolution_pb2.Dimension:
    message = evolution_pb2.Dimension(hyperparameter=dimension.hyperparameter, algorithm=dimension.algorithm)
    match dimension.range:
        case Fixed(value):
            message.fixed.CopyFrom(hyperparameter_to_message(value))
        case Uniform(low, high):
            message.uniform.low, message.uniform.high = low, high
        case LogUniform(low, high):
            message.log_uniform.low, message.log_uniform.high = low, high
        case IntegerUniform(first, last, log):
            message.integer_uniform.CopyFrom(evolution_pb2.IntegerInterval(low=first, high=last, log=log))
        case Choice(values):
            message.choice.values.extend(hyperparameter_to_message(value) for value in values)
    return message


def _dimension_from_message(message: evolution_pb2.Dimension) -> Dimension:
    path = f"search.space.{message.algorithm}{'.' if message.algorithm else ''}{message.hyperparameter}"

    def dimension(range_: Fixed | Uniform | LogUniform | IntegerUniform | Choice) -> Dimension:
        return Dimension(message.hyperparameter, range_, message.algorithm)

    try:
        match message.WhichOneof("range"):
            case "fixed":
                return dimension(Fixed(hyperparameter_from_message(message.fixed)))
            case "uniform":
                return dimension(Uniform(message.uniform.low, message.uniform.high))
            case "log_uniform":
                return dimension(LogUniform(message.log_uniform.low, message.log_uniform.high))
            case "integer_uniform":
                whole = message.integer_uniform
                return dimension(IntegerUniform(whole.low, whole.high, whole.log))
            case "choice":
                return dimension(Choice(tuple(hyperparameter_from_message(value) for value in message.choice.values)))
            case _:
                raise InvalidInput("has no range")
    except InvalidInput as error:
        raise InvalidInput(error.message, violations=[FieldViolation(path, error.message)]) from error


def _evolution_to_message(evolution: Evolution) -> evolution_pb2.Evolution:
    message = evolution_pb2.Evolution(
        scheduler=_SCHEDULERS[evolution.scheduler],
        population=evolution.population,
        leaderboard_size=evolution.places,
        round_env_steps=evolution.round.env_steps or 0,
        tournament_size=evolution.tournament_size,
        replaced_fraction=evolution.replaced_fraction,
        exploration=evolution.exploration,
        lineage_limit=evolution.lineage_limit or 0,
        keep_replay=evolution.keep_replay,
        selection=_SELECTIONS[evolution.selection],
        crossover=evolution.crossover,
        noise_scale=evolution.noise_scale,
        generator=evolution.generator or "",
        updater=evolution.updater or "",
        generations=evolution.generations or 0,
        adaptive_rounds=evolution.adaptive_rounds,
        ensemble_size=evolution.ensemble_size,
    )
    if evolution.round.seconds is not None:
        message.round_time.CopyFrom(seconds_to_duration(evolution.round.seconds))
    return message


def evolution_from_message(message: evolution_pb2.Evolution) -> Evolution:
    """How agents compete."""
    default = Evolution()
    seconds = seconds_from_duration(message.round_time) if message.HasField("round_time") else None
    round_ = Round(seconds, message.round_env_steps or None)
    generational = message.scheduler == evolution_pb2.SCHEDULER_GENERATIONAL
    has_fraction, has_exploration = message.HasField("replaced_fraction"), message.HasField("exploration")
    return Evolution(
        scheduler="generational" if generational else "tournament",
        population=message.population or default.population,
        leaderboard_size=message.leaderboard_size or None,
        round=default.round if round_ == Round() else round_,
        tournament_size=message.tournament_size or default.tournament_size,
        replaced_fraction=message.replaced_fraction if has_fraction else default.replaced_fraction,
        exploration=message.exploration if has_exploration else default.exploration,
        lineage_limit=message.lineage_limit or None,
        keep_replay=message.keep_replay,
        selection="truncation" if message.selection == evolution_pb2.SELECTION_TRUNCATION else "tournament",
        crossover=message.crossover,
        noise_scale=message.noise_scale,
        generator=message.generator or None,
        updater=message.updater or None,
        generations=message.generations or None,
        adaptive_rounds=message.adaptive_rounds if message.HasField("adaptive_rounds") else None,
        ensemble_size=message.ensemble_size,
    )


def _pod_to_message(pod: Pod) -> job_pb2.PodShape:
    return job_pb2.PodShape(
        min_count=pod.count.min,
        max_count=pod.count.most,
        members=pod.members or 0,
        envs_per_member=pod.envs_per_member or 0,
        learners=pod.learners,
        workers=pod.workers,
        layout=_LAYOUTS[pod.layout],
        resources=job_pb2.Resources(
            cpu=pod.resources.cpu or 0.0, memory_bytes=pod.resources.memory or 0, gpu=pod.resources.gpu
        ),
        deterministic=pod.deterministic,
        fusion=None if pod.fusion is None else _fusion_to_message(pod.fusion),
    )


def pod_from_message(message: job_pb2.PodShape) -> Pod:
    """The pods that work for a job."""
    layouts = {number: name for name, number in _LAYOUTS.items()}
    least = message.min_count or 1
    return Pod(
        count=PodCount(least, message.max_count or least),
        members=message.members or None,
        envs_per_member=message.envs_per_member or None,
        learners=message.learners or 1,
        workers=message.workers or 1,
        layout=layouts.get(message.layout, "auto"),  # type: ignore[arg-type]
        resources=Resources(
            message.resources.cpu or None, message.resources.memory_bytes or None, message.resources.gpu
        ),
        deterministic=message.deterministic,
        fusion=_fusion_from_message(message.fusion) if message.HasField("fusion") else None,
    )


def _fusion_to_message(fusion: Fusion) -> job_pb2.Fusion:
    return job_pb2.Fusion(
        name=fusion.name,
        interval_updates=fusion.interval or 0,
        quorum=fusion.quorum or 0,
        deadline=seconds_to_duration(fusion.deadline),
        learning_rate=fusion.learning_rate,
        momentum=fusion.momentum,
    )


def _fusion_from_message(message: job_pb2.Fusion) -> Fusion:
    default = Fusion()
    return Fusion(
        name=message.name or default.name,
        interval=message.interval_updates or None,
        quorum=message.quorum or None,
        deadline=seconds_from_duration(message.deadline) if message.HasField("deadline") else default.deadline,
        learning_rate=message.learning_rate if message.HasField("learning_rate") else None,
        momentum=message.momentum if message.HasField("momentum") else None,
    )
