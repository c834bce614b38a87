"""The request of a job, in the words of a job file, and the facts of its environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from podracer.common.v1 import environment_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_client.display import duration_text, value_text
from podracer_client.jobs import History, score_name
from podracer_core.catalogue import Choice, Fixed, IntegerInterval, Interval, Range, spaces
from podracer_core.errors import InvalidInput
from podracer_core.sections import Evolution, Fusion, Objective, Pod
from podracer_platform.jobs import Beginnings, Continuous, JobSpec, Retrain, WarmStart
from podracer_platform.messages import space_from_message

_SCALE = ", in the logarithm"


def request_rows(message: job_pb2.JobSpec) -> tuple[tuple[str, str], ...]:
    """Keys and values; only the environment's name if this version does not know the form of the
    rest."""
    try:
        spec = JobSpec.from_message(message)
    except InvalidInput as error:
        return (
            ("environment", message.environment.id or message.environment.entry_point),
            ("problem", error.message),
        )
    return tuple(
        (word, value) for word, value in _rows(spec, score_name(message.environment)) if value
    )


def searched_names(message: job_pb2.JobSpec) -> dict[str, bool]:
    """Hyperparameters that the job itself searches → whether logarithmically; empty if the job
    leaves the choice to the orchestrator."""
    try:
        space = JobSpec.from_message(message).search.space
    except InvalidInput:
        return {}
    searched = (dimension for dimension in space if not isinstance(dimension.range, Fixed))
    return {
        dimension.hyperparameter: getattr(dimension.range, "logarithmic", False)
        for dimension in searched
    }


def _rows(spec: JobSpec, called: str) -> Iterator[tuple[str, str]]:
    evaluator = spec.evaluation.evaluator
    yield "environment", spec.environment.name
    yield "arguments", _arguments(spec.environment.kwargs)
    yield "objective", _objective(spec.objective, called)
    shares = (
        each.algorithm if each.share == 1.0 else f"{each.algorithm} (share {each.share:g})"
        for each in spec.search.algorithms
    )
    yield "algorithms", ", ".join(shares) or "auto"
    for dimension in spec.search.space:
        yield dimension.key, _range(dimension.range)
    if not spec.search.space:
        yield "search space", "the algorithms' own"
    yield "evolution", _evolution(spec.evolution)
    yield "pods", _pods(spec.pod)
    yield "evaluation", f"{spec.evaluation.episodes} episodes" + (evaluator and f" by {evaluator}")
    yield "seed", str(spec.seed)
    yield "weight", f"{spec.weight:g}" if spec.weight != 1.0 else ""
    yield "warm start", _founders(spec.warm_start)
    yield "retrain", _retrain(spec.retrain) if spec.retrain else ""
    yield "continuous", _continuous(spec.continuous, bool(spec.data)) if spec.continuous else ""
    yield (
        "data",
        ", ".join(f"{name}: {getattr(file, 'name', file)}" for name, file in spec.data.items()),
    )
    yield "labels", ", ".join(f"{name}: {value}" for name, value in sorted(spec.labels.items()))


def _objective(objective: Objective, called: str) -> str:
    words = []
    if objective.target_return is not None:
        statistic = "mean" if objective.statistic == "mean" else "lower bound of the 95 % interval"
        words.append(f"{called} {objective.target_return:,g} by the {statistic}")
    if objective.max_env_steps is not None:
        words.append(f"at most {objective.max_env_steps:,} environment steps")
    if objective.max_duration is not None:
        words.append(f"at most {duration_text(objective.max_duration)}")
    if objective.max_cost is not None:
        words.append(f"at most {objective.max_cost:,g} device seconds")
    return ", ".join(words)


def _arguments(kwargs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in kwargs.items())


def _founders(warm_start: Beginnings) -> str:
    """`old/a0003, old/a0001`."""
    # in a message they have been looked up
    founders = () if isinstance(warm_start, WarmStart) else warm_start
    return ", ".join(
        founder.agent.partition("/jobs/")[2].replace("/agents/", "/") for founder in founders
    )


def _retrain(retrain: Retrain) -> str:
    words = ["the best from new weights" if retrain.scratch else "the best from its weights"]
    if retrain.env_steps is not None:
        words.append(f"{retrain.env_steps:,} environment steps")
    words.append(_arguments(retrain.kwargs))
    return ", ".join(filter(None, words))


def _continuous(continuous: Continuous, is_watching: bool) -> str:
    words = [f"watches {continuous.data_set or 'all data sets'}"] if is_watching else []
    if continuous.interval is not None:
        words.append(
            f"a generation {'at least ' if is_watching else ''}every "
            f"{duration_text(continuous.interval)}"
        )
    words.append(f"the champion is called {continuous.alias}")
    if continuous.contest:
        words.append(f"contest in {_arguments(continuous.contest)}")
    if continuous.margin:
        words.append(f"margin {continuous.margin:g}")
    return ", ".join(words)


def _range(search: Range) -> str:
    match search:
        case Fixed(value):
            return value_text(value)
        case Interval(low, high, logarithmic):
            return f"{low:g} to {high:g}{_SCALE if logarithmic else ''}"
        case IntegerInterval(low, high, logarithmic):
            return f"whole numbers {low:,} to {high:,}{_SCALE if logarithmic else ''}"
        case Choice(values):
            return f"one of {', '.join(map(value_text, values))}"


def _evolution(evolution: Evolution) -> str:
    """The keys of evolution; defaults of rarely used keys are left out."""
    length = evolution.round
    each = (
        f"{length.env_steps:,} steps"
        if length.env_steps is not None
        else duration_text(length.seconds)
    )
    words = [
        evolution.scheduler,
        f"{evolution.population} agents, {evolution.places} places on the leaderboard",
        f"rounds of {each}",
    ]
    default, told = Evolution(), ("scheduler", "population", "leaderboard_size", "round")
    for name, value in vars(evolution).items():
        if name not in told and value != getattr(default, name):
            words.append(f"{name.replace('_', ' ')} {value_text(value)}")
    return ", ".join(words)


def _pods(pod: Pod) -> str:
    count = (
        f"{pod.count.min}"
        if pod.count.most == pod.count.min
        else f"{pod.count.min} to {pod.count.most}"
    )
    words = [count, f"layout {pod.layout}"]
    if pod.learners > 1:
        fusion = pod.fusion or Fusion()
        words.append(f"{pod.learners} learners an agent, fused by {fusion.name}")
    if pod.members is not None:
        words.append(f"{pod.members} agents each")
    if pod.envs_per_member is not None:
        words.append(f"{pod.envs_per_member} environments an agent")
    if pod.workers != 1:
        words.append(f"{pod.workers} workers")
    if pod.resources.gpu:
        words.append(f"{pod.resources.gpu} GPU")
    if pod.profile:
        words.append(f"profile {pod.profile}")
    return ", ".join(words)


def environment_rows(history: History) -> tuple[tuple[str, str], ...]:
    """The facts of the environment, as far as it has been inspected."""
    rows = [("environment", history.environment_id)]
    description = history.job.environment_description
    if history.job.HasField("environment_description"):
        rows += [
            ("observations", _space(description.observation_space)),
            ("actions", _space(description.action_space)),
            (
                "time limit",
                f"{description.max_episode_steps:,} steps"
                if description.max_episode_steps
                else "none",
            ),
            ("computed by", description.backend),
            (
                "a greedy policy's returns",
                "always the same" if description.deterministic_evaluation else "vary",
            ),
            ("prepared", description.preparation),
        ]
    return tuple((word, value) for word, value in rows if value)


def _space(message: environment_pb2.Space) -> str:
    try:
        return spaces.describe(space_from_message(message))
    except InvalidInput:
        return ""
