"""A job on the wire is the job."""

from __future__ import annotations

import pytest

from podracer.orchestrator.v1 import job_pb2
from podracer_core.catalogue.environments import EnvironmentSpec
from podracer_core.catalogue.environments.spec import StoredFile
from podracer_core.errors import InvalidInput
from podracer_core.jobs import spec as words
from podracer_core.jobs.messages import (
    seconds_from_duration,
    seconds_to_duration,
    spec_from_message,
    spec_to_message,
)

FILE = StoredFile("projects/p/artifacts/a/content", "0a" * 32, 1234, "prices.csv")
# fmt: off
FULL = words.JobSpec(
    name="full",
    environment=EnvironmentSpec(
        entry_point="a.b:C", kwargs={"g": 9.81, "n": 3, "s": "x", "b": True}, max_episode_steps=7, code=FILE
    ),
    objective=words.Objective(-200.0, "mean", 1_000_000, 600.5, 77.25),
    search=words.Search(
        (words.AlgorithmShare("ppo", 2.0),),
        (
            words.Dimension("learning_rate", words.LogUniform(1e-4, 1e-2)),
            words.Dimension("gamma", words.Uniform(0.9, 0.99), "ppo"),
            words.Dimension("epochs", words.IntegerUniform(1, 8, log=True)),
            words.Dimension("hidden_sizes", words.Choice(((64, 64), (128,)))),
            words.Dimension("normalize_values", words.Fixed(False)),
            words.Dimension("activation", words.Fixed("relu")),
        ),
    ),
    evolution=words.Evolution(
        "generational", 12, 5, words.Round(None, 5000), 3, 0.0, 0.0, 2, True, "truncation", 0.25, 0.1, "mine", "theirs",
        7, True, 3,
    ),
    pod=words.Pod(
        words.PodCount(1, 3), 4, 32, 3, 2, "split", words.Resources(1.5, 2**31, 1), True,
        words.Fusion("outer", 4, 2, 2.5, 0.7, 0.0),
    ),
    evaluation=words.EvaluationPlan(100),
    seed=-5,
    weight=2.5,
    data={"table": FILE},
    labels={"team": "blue"},
)
# fmt: on
PLAIN = words.JobSpec("plain", EnvironmentSpec(id="CartPole-v1"), words.Objective(target_return=475.0))


@pytest.mark.parametrize("spec", [FULL, PLAIN], ids=["full", "plain"])
def test_a_job_comes_back_as_it_was(spec: words.JobSpec) -> None:
    read = spec_from_message(job_pb2.JobSpec.FromString(spec_to_message(spec).SerializeToString()))
    if spec is PLAIN:  # an unset maximum is written as the minimum
        assert read.pod.count == words.PodCount(1, 1)
        spec_to_message(read)
    else:
        assert read == spec


def test_what_a_message_leaves_unset_is_the_default() -> None:
    message = job_pb2.JobSpec(display_name="bare")
    message.environment.id = "CartPole-v1"
    spec = spec_from_message(message)
    assert spec.evolution == words.Evolution()
    assert spec.search == words.Search()
    assert spec.evaluation.episodes == 32
    assert spec.weight == 1.0
    assert spec.objective == words.Objective()


def test_what_cannot_be_read_is_named_by_field() -> None:
    message = job_pb2.JobSpec(display_name="bad")
    message.search.space.add(hyperparameter="gamma")
    message.evaluation.evaluator = "another"
    with pytest.raises(InvalidInput) as caught:
        spec_from_message(message)
    assert {violation.field for violation in caught.value.violations} == {
        "environment",
        "search.space.gamma",
        "evaluation.evaluator",
    }


@pytest.mark.parametrize("seconds", [0.0, 0.25, 3600.0, 1e-9, 12345.678901234, 0.9999999999])
def test_durations_keep_nanoseconds(seconds: float) -> None:
    assert seconds_from_duration(seconds_to_duration(seconds)) == pytest.approx(seconds, abs=1e-9)
