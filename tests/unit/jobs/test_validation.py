"""What cannot be right in a job."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from podracer_core.catalogue import (
    BoxSpace,
    Choice,
    DictSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Fixed,
    IntegerInterval,
    Interval,
    MultiBinarySpace,
    MultiDiscreteSpace,
)
from podracer_core.errors import InvalidInput
from podracer_core.sections import (
    AlgorithmShare,
    Dimension,
    EvaluationPlan,
    Evolution,
    Objective,
    Pod,
    PodCount,
    Resources,
    Round,
    Search,
)
from podracer_platform.jobs import JobSpec, shortened_rounds, validate, validate_spaces
from support.errors import raises

JOB = JobSpec("j", EnvironmentSpec(id="CartPole-v1"), Objective(target_return=475.0))


def _fields(spec: JobSpec) -> list[str]:
    with raises(InvalidInput, "INVALID_JOB") as caught:
        validate(spec)
    return [violation.field for violation in caught.value.violations]


def test_the_defaults_are_right():
    validate(JOB)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "-a"}, "name"),
        ({"name": "a_b"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": "a\n"}, "name"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"weight": 0.0}, "weight"),
        ({"weight": math.inf}, "weight"),
        ({"weight": math.nan}, "weight"),
        ({"labels": {"k": "v" * 64}}, "labels.k"),
        ({"labels": {str(n): "" for n in range(65)}}, "labels"),
        ({"evaluation": EvaluationPlan(7)}, "evaluation.episodes"),
        ({"evaluation": EvaluationPlan(10_001)}, "evaluation.episodes"),
        ({"objective": Objective()}, "objective"),
        ({"objective": Objective(target_return=math.inf)}, "objective.target_return"),
        ({"objective": Objective(target_return=math.nan)}, "objective.target_return"),
        ({"objective": Objective(max_env_steps=0)}, "objective.max_env_steps"),
        ({"objective": Objective(max_duration=0.0)}, "objective.max_duration"),
        ({"objective": Objective(max_duration=math.inf)}, "objective.max_duration"),
        ({"objective": Objective(max_cost=-1.0)}, "objective.max_cost"),
        ({"objective": Objective(max_duration=0.09)}, "objective.max_duration"),
        (
            {"objective": Objective(max_env_steps=15), "pod": Pod(envs_per_member=16)},
            "objective.max_env_steps",
        ),
        ({"weight": -1.0}, "weight"),
        ({"evolution": Evolution(population=0)}, "evolution.population"),
        ({"evolution": Evolution(leaderboard_size=0)}, "evolution.leaderboard_size"),
        ({"evolution": Evolution(tournament_size=0)}, "evolution.tournament_size"),
        ({"evolution": Evolution(replaced_fraction=1.1)}, "evolution.replaced_fraction"),
        ({"evolution": Evolution(exploration=math.nan)}, "evolution.exploration"),
        ({"evolution": Evolution(lineage_limit=0)}, "evolution.lineage_limit"),
        ({"evolution": Evolution(round=Round())}, "evolution.round"),
        ({"evolution": Evolution(round=Round(1.0, 1))}, "evolution.round"),
        ({"evolution": Evolution(round=Round(env_steps=0))}, "evolution.round.env_steps"),
        ({"pod": Pod(count=PodCount(0))}, "pod.count.min"),
        ({"pod": Pod(count=PodCount(2, 1))}, "pod.count.max"),
        ({"pod": Pod(members=9)}, "pod.members"),
        ({"pod": Pod(count=PodCount(2), members=5)}, "pod.members"),
        ({"pod": Pod(count=PodCount(3, 9), members=3)}, "pod.members"),
        ({"pod": Pod(members=0)}, "pod.members"),
        ({"pod": Pod(envs_per_member=0)}, "pod.envs_per_member"),
        ({"pod": Pod(workers=0)}, "pod.workers"),
        ({"pod": Pod(resources=Resources(cpu=0.0))}, "pod.resources.cpu"),
        ({"pod": Pod(resources=Resources(memory=0))}, "pod.resources.memory"),
        ({"pod": Pod(resources=Resources(gpu=-1))}, "pod.resources.gpu"),
        ({"environment": EnvironmentSpec(id="CartPoel-v1")}, "environment.id"),
        ({"labels": {"team": "blue\x01"}}, "labels.team"),
        ({"search": Search((AlgorithmShare("poo"),))}, "search.algorithms[0]"),
        (
            {"search": Search((AlgorithmShare("ppo"), AlgorithmShare("ppo")))},
            "search.algorithms[1]",
        ),
        ({"search": Search((AlgorithmShare("ppo", 0.0),))}, "search.algorithms[0]"),
        (
            {"search": Search((AlgorithmShare("ppo"), AlgorithmShare("dqn", -1.0)))},
            "search.algorithms[1]",
        ),
        ({"search": Search((AlgorithmShare("ppo", math.nan),))}, "search.algorithms[0]"),
        ({"search": Search((AlgorithmShare("ppo", 1e7),))}, "search.algorithms[0]"),
    ],
)
def test_a_bad_value_is_named_by_its_field(change, field):
    assert _fields(replace(JOB, **change)) == [field]


@pytest.mark.parametrize(
    ("name", "searched", "problem"),
    [
        ("gamma", Interval(0.99, 0.9), "expected low < high, got [0.99, 0.9]"),
        ("gamma", Interval(0.9, 0.9), "expected low < high"),
        ("gamma", Interval(0.9, 1.1), "must be a number from 0 to 1, not 1.1"),
        ("gamma", Interval(0.9, math.inf), "not inf"),
        ("gamma", Interval(math.nan, 0.9), "not nan"),
        ("gamma", Interval(0.0, 0.9, logarithmic=True), "a logarithmic range must be above 0"),
        ("gamma", IntegerInterval(0, 1), "gamma is not a whole number: use uniform"),
        ("gamma", Choice(()), "at least one value"),
        ("gamma", Choice((0.9, 0.9)), "there twice"),
        ("gamma", Choice((0.9, "x")), "must be a number, not 'x'"),
        ("gamma", Fixed(True), "must be a number, not True"),
        (
            "horizon",
            Interval(16.0, 64.0),
            "horizon is not a real number: use integer_uniform or choice",
        ),
        ("horizon", IntegerInterval(0, 64), "must be a whole number from 1"),
        ("horizon", IntegerInterval(64, 16, logarithmic=True), "expected low < high"),
        ("horizon", Fixed(1.5), "must be a whole number"),
        ("hidden_sizes", Fixed(64), "must be a list of whole numbers"),
        ("hidden_sizes", Fixed((64, 0)), "must be a list each of which"),
        ("activation", Choice(("tanh", "sine")), "must be one of tanh, relu"),
        ("activation", Interval(0.0, 1.0), "activation is not a real number: use choice"),
        (
            "learning_rat",
            Fixed(0.1),
            "unknown hyperparameter 'learning_rat'; did you mean learning_rate",
        ),
    ],
)
def test_an_impossible_range(name, searched, problem):
    with pytest.raises(InvalidInput) as caught:
        validate(replace(JOB, search=Search(space=(Dimension(name, searched),))))
    assert {violation.field for violation in caught.value.violations} == {f"search.space.{name}"}
    assert problem in str(caught.value)


def test_a_range_that_is_too_high_says_so():
    with raises(InvalidInput, "INVALID_JOB"):
        validate(replace(JOB, weight=1e7))


@pytest.mark.parametrize(
    ("round_", "objective", "warnings"),
    [
        (Round(seconds=15.0), Objective(max_duration=15.0, max_cost=60.0, max_env_steps=1), []),
        (
            Round(seconds=15.0),
            Objective(max_duration=5.0, max_cost=2.5),
            [
                "max_duration (5 s) is less than one round takes (15 s)",
                "max_cost (2.5 s) is less than one round takes (15 s)",
            ],
        ),
        (Round(env_steps=1000), Objective(max_env_steps=4000), []),
        (
            Round(env_steps=1000),
            Objective(max_env_steps=3999, max_duration=1.0),
            ["max_env_steps (3_999) is less than one round takes (4_000 steps)"],
        ),
    ],
)
def test_a_budget_of_less_than_a_round_is_no_mistake_but_said(round_, objective, warnings):
    job = replace(JOB, objective=objective, evolution=Evolution(round=round_), pod=Pod(members=4))
    validate(job)
    assert list(shortened_rounds(job)) == warnings


def test_dimensions_of_one_algorithm():
    validate(
        replace(
            JOB,
            search=Search(
                space=(Dimension("gamma", Fixed(0.9), "ppo"), Dimension("gamma", Fixed(0.8)))
            ),
        )
    )
    with raises(InvalidInput, "INVALID_JOB"):
        validate(
            replace(
                JOB,
                search=Search((AlgorithmShare("ppo"),), (Dimension("gamma", Fixed(0.9), "sac"),)),
            )
        )
    twice = Search(space=(Dimension("gamma", Fixed(0.9)), Dimension("gamma", Fixed(0.8))))
    assert _fields(replace(JOB, search=twice)) == ["search.space.gamma"]


class TestSeveralAlgorithms:
    """`max_gradient_norm` may be 0 for DQN, not for PPO; `target_entropy_scale` 2 suits SAC, not
    its discrete form."""

    BOTH = (AlgorithmShare("ppo"), AlgorithmShare("dqn"))
    LARGE_SCALE = Search(space=(Dimension("target_entropy_scale", Fixed(2.0)),))

    def problems(self, search: Search) -> str:
        with pytest.raises(InvalidInput) as caught:
            validate(replace(JOB, search=search))
        return str(caught.value)

    def test_a_dimension_must_fit_all_that_have_it(self):
        problem = self.problems(Search(self.BOTH, (Dimension("max_gradient_norm", Fixed(0.0)),)))
        assert problem.startswith("search.space.max_gradient_norm: ppo: must be a number from")
        assert "dqn" not in problem
        validate(
            replace(
                JOB, search=Search(self.BOTH, (Dimension("max_gradient_norm", Fixed(0.0), "dqn"),))
            )
        )
        own = (
            Dimension("max_gradient_norm", Fixed(0.0)),
            Dimension("max_gradient_norm", Fixed(0.5), "ppo"),
        )
        validate(replace(JOB, search=Search(self.BOTH, own)))
        validate(replace(JOB, search=Search(self.BOTH, (Dimension("minibatch_size", Fixed(64)),))))

    def test_what_no_algorithm_allows_is_said_once(self):
        problem = self.problems(Search(self.BOTH, (Dimension("gamma", Fixed(2.0)),)))
        assert problem == "search.space.gamma: must be a number from 0 to 1, not 2.0"

    def test_auto_has_the_space_of_those_that_can_act(self):
        assert "from 0 to 1" in self.problems(self.LARGE_SCALE)
        validate(
            replace(JOB, environment=EnvironmentSpec(id="Pendulum-v1"), search=self.LARGE_SCALE)
        )
        assert "unknown hyperparameter 'policy_delay'" in self.problems(
            Search(space=(Dimension("policy_delay", Fixed(2)),))
        )

    def test_before_the_inspection_one_that_fits_is_enough(self):
        users = replace(JOB, environment=EnvironmentSpec(entry_point="a.b:C"))
        validate(replace(users, search=self.LARGE_SCALE))
        validate_spaces(self.LARGE_SCALE, BoxSpace(0.0, 1.0, (1,)), BoxSpace(-1.0, 1.0, (2,)))
        with pytest.raises(InvalidInput, match="from 0 to 1"):
            validate_spaces(self.LARGE_SCALE, BoxSpace(0.0, 1.0, (1,)), DiscreteSpace(2))
        with pytest.raises(InvalidInput, match="not 3000"):
            validate(
                replace(
                    users, search=Search(space=(Dimension("target_entropy_scale", Fixed(3000.0)),))
                )
            )


def test_all_violations_come_together():
    spec = replace(JOB, name="J", objective=Objective(), evaluation=EvaluationPlan(1))
    assert _fields(spec) == ["name", "evaluation.episodes", "objective"]


class TestActionSpaces:
    def test_an_algorithm_that_cannot_act_is_refused_once_the_space_is_known(self):
        search = Search((AlgorithmShare("ppo"),))
        validate_spaces(search, BoxSpace(0.0, 1.0, (1,)), DiscreteSpace(3))
        with raises(InvalidInput, "INVALID_JOB", field="search.algorithms[0]"):
            validate_spaces(search, BoxSpace(0.0, 1.0, (1,)), DictSpace(()))

    def test_auto_needs_one_that_can(self):
        with raises(InvalidInput, "INVALID_JOB"):
            validate_spaces(Search(), BoxSpace(0.0, 1.0, (1,)), DictSpace(()))

    @pytest.mark.parametrize(
        ("space", "names"),
        [
            (BoxSpace(-1.0, 1.0, (2,)), {"ppo", "sac", "td3"}),
            (BoxSpace(-math.inf, math.inf, (2,)), {"ppo"}),
            (DiscreteSpace(3), {"ppo", "d3qn", "discrete_sac"}),
            (MultiDiscreteSpace((3, 2)), {"ppo"}),
            (MultiBinarySpace((3,)), {"ppo"}),
            (None, {"ppo", "sac", "td3", "d3qn", "discrete_sac"}),
            (DictSpace(()), set()),
        ],
    )
    def test_auto_is_a_few_that_can_in_equal_shares(self, space, names):
        shares = Search().shares(space)
        assert {share.algorithm for share in shares} == names
        assert {share.share for share in shares} <= {1.0}

    def test_what_a_job_names_is_what_it_gets(self):
        chosen = (AlgorithmShare("a2c", 2.0),)
        assert Search(chosen).shares(DiscreteSpace(2)) == chosen


@pytest.mark.parametrize(
    ("algorithm", "space", "field"),
    [
        ("redq", {"ensemble_size": Fixed(2), "subset_size": Fixed(5)}, "subset_size"),
        ("redq", {"ensemble_size": Choice((1, 10))}, "subset_size"),
        ("redq", {"subset_size": IntegerInterval(2, 11)}, "subset_size"),
        ("td3", {"replay": Fixed("shared"), "prioritized": Choice((False, True))}, "replay"),
        (
            "td3",
            {"replay": Choice(("member", "mixed")), "prioritized": Fixed(value=True)},
            "replay",
        ),
    ],
)
def test_values_that_are_wrong_only_together(algorithm, space, field):
    search = Search(
        (AlgorithmShare(algorithm),), tuple(Dimension(key, value) for key, value in space.items())
    )
    job = replace(JOB, environment=EnvironmentSpec(id="Pendulum-v1"), search=search)
    assert _fields(job) == [f"search.space.{field}"]


def test_values_that_go_together_are_right():
    space = {"ensemble_size": Choice((2, 10)), "subset_size": Fixed(2), "replay": Fixed("shared")}
    search = Search(
        (AlgorithmShare("redq"),), tuple(Dimension(key, value) for key, value in space.items())
    )
    validate(replace(JOB, environment=EnvironmentSpec(id="Pendulum-v1"), search=search))
