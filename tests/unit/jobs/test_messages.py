"""A job on the wire is the job."""

from __future__ import annotations

import dataclasses

import pytest

from podracer.common.v1 import evolution_pb2
from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue import EnvironmentSpec, StoredFile, hyperparameters
from podracer_core.errors import InvalidInput
from podracer_core.sections import (
    AlgorithmShare,
    Dimension,
    EvaluationPlan,
    Evolution,
    Fusion,
    Objective,
    Pod,
    PodCount,
    Resources,
    Round,
    Search,
)
from podracer_platform.jobs import Continuous, JobSpec, Retrain
from podracer_platform.messages import seconds_from_duration, seconds_to_duration

FILE = StoredFile("projects/p/artifacts/a/content", "0a" * 32, 1234, "prices.csv")
# fmt: off
FULL = JobSpec(
    name="full",
    environment=EnvironmentSpec(
        entry_point="a.b:C", kwargs={"g": 9.81, "n": 3, "s": "x", "b": True}, max_episode_steps=7, code=FILE
    ),
    objective=Objective(-200.0, "mean", 1_000_000, 600.5, 77.25),
    search=Search(
        (AlgorithmShare("ppo", 2.0),),
        (
            Dimension("learning_rate", hyperparameters.Interval(1e-4, 1e-2, logarithmic=True)),
            Dimension("gamma", hyperparameters.Interval(0.9, 0.99), "ppo"),
            Dimension("epochs", hyperparameters.IntegerInterval(1, 8, logarithmic=True)),
            Dimension("hidden_sizes", hyperparameters.Choice(((64, 64), (128,)))),
            Dimension("normalize_values", hyperparameters.Fixed(False)),
            Dimension("activation", hyperparameters.Fixed("relu")),
        ),
    ),
    evolution=Evolution(
        "generational", 12, 5, Round(None, 5000), 3, 0.0, 0.0, 2, True, "truncation", 0.25, 0.1,
        "mine", "theirs", 7, True, 3,
    ),
    pod=Pod(
        PodCount(1, 3), 4, 32, 3, 2, "split", Resources(1.5, 2**31, 1), True,
        Fusion("outer", 4, 2, 2.5, 0.7, 0.0), "a100",
    ),
    evaluation=EvaluationPlan(100),
    seed=-5,
    weight=2.5,
    data={"table": FILE},
    labels={"team": "blue"},
)
# fmt: on
PLAIN = JobSpec("plain", EnvironmentSpec(id="CartPole-v1"), Objective(target_return=475.0))


@pytest.mark.parametrize("spec", [FULL, PLAIN], ids=["full", "plain"])
def test_a_job_comes_back_as_it_was(spec):
    read = JobSpec.from_message(job_pb2.JobSpec.FromString(spec.to_message().SerializeToString()))
    if spec is PLAIN:  # an unset maximum is written as the minimum
        assert read.pod.count == PodCount(1, 1)
        read.to_message()
    else:
        assert read == spec


@pytest.mark.parametrize(
    ("section", "message", "apart"),
    [
        (Objective, evolution_pb2.Objective, set()),
        (EvaluationPlan, job_pb2.EvaluationSpec, set()),
        (Evolution, evolution_pb2.Evolution, {"round", "round_time", "round_env_steps"}),
        (Pod, job_pb2.PodShape, {"count", "min_count", "max_count"}),
        (Resources, job_pb2.Resources, {"memory", "memory_bytes"}),
        (Fusion, job_pb2.Fusion, {"interval", "interval_updates"}),
        (Continuous, job_pb2.Continuous, set()),
        (Retrain, job_pb2.Retrain, set()),
        (AlgorithmShare, evolution_pb2.AlgorithmShare, set()),
        (JobSpec, job_pb2.JobSpec, {"name", "display_name", "data_sets", "warm_start", "founders"}),
    ],
)
def test_a_field_is_called_alike_in_section_and_message(section, message, apart):
    """What is not is written by hand; `read` and `write` would pass over it."""
    names = {field.name for field in dataclasses.fields(section)}
    assert names ^ set(message.DESCRIPTOR.fields_by_name) == apart


def test_what_a_message_leaves_unset_is_the_default():
    message = job_pb2.JobSpec(display_name="bare")
    message.environment.id = "CartPole-v1"
    spec = JobSpec.from_message(message)
    assert spec.evolution == Evolution()
    assert spec.search == Search()
    assert spec.evaluation.episodes == 32
    assert spec.weight == 1.0
    assert spec.objective == Objective()


def test_what_cannot_be_read_is_named_by_field():
    message = job_pb2.JobSpec(display_name="bad")
    message.search.space.add(hyperparameter="gamma")
    with pytest.raises(InvalidInput) as caught:
        JobSpec.from_message(message)
    assert {violation.field for violation in caught.value.violations} == {
        "environment",
        "search.space.gamma",
    }


@pytest.mark.parametrize("seconds", [0.0, 0.25, 3600.0, 1e-9, 12345.678901234, 0.9999999999])
def test_durations_keep_nanoseconds(seconds):
    assert seconds_from_duration(seconds_to_duration(seconds)) == pytest.approx(seconds, abs=1e-9)
