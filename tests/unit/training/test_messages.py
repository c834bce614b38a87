"""A cohort on the wire -> the cohort that an algorithm is built for."""

from __future__ import annotations

import pytest

from podracer.common.v1 import cohort_pb2
from podracer_core.catalogue import HyperparameterValue
from podracer_core.errors import InvalidInput
from podracer_core.sections import MAX_MEMBERS
from podracer_platform.messages import hyperparameter_to_message
from podracer_platform.training_messages import cohort_from_message
from support.errors import raises


def message(*members: dict[str, HyperparameterValue]) -> cohort_pb2.CohortSpec:
    cohort = cohort_pb2.CohortSpec(algorithm="ppo")
    for index, values in enumerate(members):
        agent = cohort.members.add(name=f"a{index}", algorithm="ppo", seed=-index)
        for name, value in values.items():
            agent.hyperparameters[name].CopyFrom(hyperparameter_to_message(value))
    return cohort


def test_members_own_values_and_what_they_share():
    shared = {"horizon": 16, "hidden_sizes": (32, 32), "activation": "relu"}
    cohort = cohort_from_message(
        message(shared | {"learning_rate": 0.1}, shared | {"learning_rate": 0.2, "gamma": 1})
    )
    assert dict(cohort.shared) == shared
    assert [member.name for member in cohort.members] == ["a0", "a1"]
    assert [member.seed for member in cohort.members] == [0, -1]
    assert [dict(member.hyperparameters) for member in cohort.members] == [
        {"learning_rate": 0.1},
        {"learning_rate": 0.2, "gamma": 1.0},
    ]


def test_a_whole_number_may_come_as_a_real_one():
    assert cohort_from_message(message({"horizon": 16.0})).shared["horizon"] == 16


@pytest.mark.parametrize(
    ("cohort", "reason"),
    [
        (message({"horizon": 16}, {"horizon": 8}), "COHORT_MISMATCH"),
        (message({"horizon": 16}, {}), "COHORT_MISMATCH"),
        (message({"learning_rat": 0.1}), "INVALID_INPUT"),
        (message({"learning_rate": -0.1}), "INVALID_INPUT"),
        (message({"learning_rate": "fast"}), "INVALID_INPUT"),
        (message({"learning_rate": (1, 2)}), "INVALID_INPUT"),
        (message({"horizon": 2.5}), "INVALID_INPUT"),
        (message(*[{}] * (MAX_MEMBERS + 1)), "INVALID_INPUT"),
        (message(), "INVALID_INPUT"),
        (cohort_pb2.CohortSpec(algorithm="dreamer"), "UNKNOWN_ALGORITHM"),
    ],
    ids=[
        "horizons",
        "a missing horizon",
        "a name",
        "a range",
        "a word",
        "a list",
        "a fraction",
        "a crowd",
        "no member",
        "the algorithm",
    ],
)
def test_what_cannot_be_stacked_or_trained_is_refused(cohort, reason):
    with raises(InvalidInput, reason):
        cohort_from_message(cohort)


def test_a_member_of_another_algorithm_is_refused():
    cohort = message({})
    cohort.members[0].algorithm = "sac"
    with pytest.raises(InvalidInput, match=r"members\[0\].algorithm"):
        cohort_from_message(cohort)
