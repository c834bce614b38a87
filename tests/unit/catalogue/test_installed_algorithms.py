"""An installed package brings an algorithm, and everything finds it; a broken one is named and does
no harm."""

from __future__ import annotations

import pytest

from podracer.common.v1 import agent_pb2, cohort_pb2, environment_pb2, evolution_pb2
from podracer.leaderboard.v1 import leaderboard_service_pb2 as leaderboard_pb2
from podracer_core.algorithms import Algorithm, algorithm_class
from podracer_core.catalogue import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    automatic_algorithms,
    broken_algorithms,
    check_action_space,
    find_algorithm,
    known_algorithms,
)
from podracer_core.errors import InvalidInput
from podracer_core.evolution import shape_of
from podracer_leaderboard.competition import read_competition
from podracer_platform.jobs import parse_job, validate
from podracer_platform.training_messages import cohort_from_message
from support.errors import raises
from support.installed import CATALOGUE, Install, install

__all__ = ["install"]

MINE = {"mine": "my_package.catalogue:INFO"}
IMPLEMENTATION = """
from podracer_core.algorithms import Algorithm

class Mine(Algorithm):
    on_policy = True
    max_lag = 0
"""


class TestASoundOne:
    @pytest.fixture(autouse=True)
    def package(self, install: Install) -> None:
        install("my-package", MINE, catalogue=CATALOGUE, mine=IMPLEMENTATION)

    def test_is_in_the_catalogue(self):
        info = find_algorithm("mine")
        assert info is known_algorithms()["mine"]
        assert info.package == "my-package 1.2"
        assert find_algorithm("ppo").package == ""
        assert broken_algorithms() == []
        with raises(InvalidInput, "UNKNOWN_ALGORITHM"):
            find_algorithm("mien")

    def test_acts_where_it_says_and_not_for_auto(self):
        check_action_space("mine", DiscreteSpace(2))
        check_action_space("mine", DictSpace(()))
        assert "mine" not in automatic_algorithms(None)
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match="mine"):
            check_action_space("mine", BoxSpace(-1.0, 1.0, (2,)))
        with raises(InvalidInput, "ACTION_SPACE_UNSUPPORTED", match="mine"):
            check_action_space("ppo", DictSpace(()))

    def test_a_job_may_search_it(self):
        text = (
            "name: j\nenvironment: {id: CartPole-v1}\nobjective: {target_return: 475}\n"
            "search: {algorithms: [mine, ppo], space: {mine.boldness: {uniform: [0.1, 0.9]}}}\n"
        )
        validate(parse_job(text, "job.yaml"))
        with raises(InvalidInput, "INVALID_FILE"):
            validate(parse_job(text.replace("0.9", "1.9"), "job.yaml"))

    def test_a_leaderboard_proposes_it(self):
        spec = leaderboard_pb2.LeaderboardSpec(
            job="projects/p/jobs/j",
            objective=evolution_pb2.Objective(target_return=1.0),
            environment_description=environment_pb2.EnvironmentDescription(
                action_space=environment_pb2.Space(discrete=environment_pb2.DiscreteSpace(n=2))
            ),
            search=evolution_pb2.Search(
                algorithms=[evolution_pb2.AlgorithmShare(algorithm="mine")]
            ),
        )
        assert read_competition(spec).space.shares == {"mine": 1.0}
        assert shape_of("mine", {"boldness": 0.1}) == ("mine", ())

    def test_a_pod_trains_it(self):
        agent = agent_pb2.AgentSpec(
            name="a",
            algorithm="mine",
            hyperparameters={"boldness": agent_pb2.HyperparameterValue(number=0.25)},
        )
        cohort = cohort_from_message(cohort_pb2.CohortSpec(algorithm="mine", members=[agent]))
        assert cohort.members[0].hyperparameters == {"boldness": 0.25}
        assert issubclass(algorithm_class("mine"), Algorithm)


@pytest.mark.parametrize(
    ("entry_points", "catalogue", "problem"),
    [
        (
            {"mine": "my_package.missing:INFO"},
            CATALOGUE,
            "my_package.missing:INFO cannot be loaded: ModuleNotFoundError",
        ),
        ({"mine": "my_package.catalogue:NONE"}, CATALOGUE, "cannot be loaded: AttributeError"),
        (MINE, "1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        (
            MINE,
            CATALOGUE.replace('"boldness", "float", 0.5', '"boldness", "float", 5'),
            "boldness must be a number from",
        ),
        (MINE, "INFO = {}", "is a dict; expected an AlgorithmInfo"),
        (
            {"mien": "my_package.catalogue:INFO"},
            CATALOGUE,
            "is named 'mine'; the entry point must have the same name",
        ),
        ({"ppo": "my_package.catalogue:INFO"}, CATALOGUE, "the name is a built-in algorithm's"),
    ],
)
def test_a_broken_one_is_named_with_its_package(entry_points, catalogue, problem, install):
    install("my-package", entry_points, catalogue=catalogue)
    (name,) = entry_points
    (message,) = broken_algorithms()
    assert message.startswith(f"algorithm '{name}' of package my-package 1.2: ")
    assert problem in message
    assert find_algorithm("ppo").implementation == "podracer_core.algorithms.ppo:PPO"
    assert "mine" not in known_algorithms()
    if name != "ppo":
        with pytest.raises(InvalidInput) as caught:
            find_algorithm(name)
        assert (caught.value.message, caught.value.reason) == (message, "BROKEN_ALGORITHM")


def test_a_broken_one_leaves_the_others_alone(install):
    install("my-package", MINE, catalogue=CATALOGUE)
    install("other-package", {"other": "other_package:INFO"})
    assert find_algorithm("mine").package == "my-package 1.2"
    assert len(broken_algorithms()) == 1


def test_two_of_one_name_are_both_refused(install):
    install("my-package", MINE, catalogue=CATALOGUE)
    install("other-package", {"mine": "other_package.catalogue:INFO"}, catalogue=CATALOGUE)
    with raises(InvalidInput, "BROKEN_ALGORITHM"):
        find_algorithm("mine")
    assert len(broken_algorithms()) == 2


@pytest.mark.parametrize(
    ("implementation", "problem"),
    [
        ("", "my_package.mine:Mine cannot be imported: AttributeError"),
        (
            "import no_such_module",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("class Mine: pass", "is no podracer_core.algorithms.algorithm.Algorithm"),
    ],
)
def test_a_class_that_cannot_be_had(implementation, problem, install):
    install("my-package", MINE, catalogue=CATALOGUE, mine=implementation)
    with pytest.raises(InvalidInput) as caught:
        algorithm_class("mine")
    assert caught.value.message.startswith(
        "algorithm 'mine' of package my-package 1.2: my_package.mine:Mine "
    )
    assert problem in caught.value.message
