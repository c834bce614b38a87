"""What benchmarks/recorded_curves.py keeps, and the arithmetic of replays; that it trains is shown
by running it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from recorded import methods
from recorded.curves import Curve, Look, append_curves, read_curves
from recorded.replay import FEW, MANY, Array, Draw, Recording, spearman
from recorded.tasks import EPISODES, LOOKS, TASKS, chunks, configurations
from replayed_selection import ORACLE, replay

from podracer_core.catalogue import BoxSpace, DiscreteSpace, automatic_algorithms, find_algorithm

PENDULUM = next(task for task in TASKS if task.environment == "Pendulum-v1")


def test_the_list_begins_with_the_defaults_and_a_shorter_one_is_its_beginning() -> None:
    found = configurations(PENDULUM)
    assert [each.algorithm for each in found[:6]] == ["ppo", "td3", "sac"] * 2
    assert found[0].hyperparameters["gamma"] == find_algorithm("ppo").defaults()["gamma"]
    assert found[3].hyperparameters["gamma"] != found[0].hyperparameters["gamma"]
    assert found[:7] == configurations(PENDULUM, 7)
    assert len({each.settings(PENDULUM) for each in found}) == len(found) == 48


def test_the_algorithms_are_those_of_auto() -> None:
    box, discrete = BoxSpace((1,), (-1.0,), (1.0,)), DiscreteSpace(2)
    for task in TASKS:
        space = discrete if task.environment in ("CartPole-v1", "LunarLander-v3") else box
        assert list(task.algorithms) == automatic_algorithms(space)


def test_a_cohort_has_one_algorithm() -> None:
    groups = chunks(configurations(PENDULUM, 11), 3)
    assert [[each.number for each in group] for group in groups] == [
        [0, 3, 6],
        [9],
        [1, 4, 7],
        [10],
        [2, 5, 8],
    ]


def test_a_finished_curve_is_found_again_also_behind_a_torn_line(tmp_path: Path) -> None:
    looks = (Look(0, 0.0, (1.0, 2.0)), Look(64, 0.25, (3.0, 4.5)))
    first = Curve(
        "Pendulum-v1", 0, "abc", "ppo", {"gamma": 0.9, "hidden_sizes": [8, 8]}, 16, 0.5, looks
    )
    second = replace(first, number=1)
    results = tmp_path / "runs" / "curves.jsonl"
    append_curves(results, [first])
    with results.open("a") as file:
        file.write('{"task": "Pend')
    append_curves(results, [second])
    assert read_curves(tmp_path / "none.jsonl", results) == {first.key: first, second.key: second}
    assert (first.end, first.cut(0).end) == ((1 + 2 + 3 + 4.5) / 4, 1.5)


def test_rank_correlation_by_hand() -> None:
    # 1 - 6 · 2 / 24
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])) == pytest.approx(0.5)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: 4.5 / √(4.5 · 5).
    assert spearman(
        np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    ) == pytest.approx(0.9486833)
    assert spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0.0


def test_worth_comes_from_episodes_that_no_method_sees() -> None:
    # Two agents, looks 0 to 3; the episodes of a look differ by their place.
    means = np.array([[0.0, 2.0, 4.0, 6.0], [0.0, 1.0, 1.0, 10.0]])
    returns = means[:, :, None] + np.linspace(-1.0, 1.0, EPISODES)
    recording = Recording(returns, ends=np.array([6.0, 10.0]), defaults=2)
    assert recording.untrained == pytest.approx(0.0)
    draw = recording.drawn(np.random.default_rng(0))
    assert (draw.order.tolist(), draw.looks, draw.ends.tolist()) == ([0, 1], 3, [0.6, 1.0])
    shift = float((draw.few - means)[0, 0])  # the same episodes for both agents and all looks
    assert draw.few == pytest.approx(means + shift)
    assert draw.few_variance.shape == draw.many.shape == means.shape
    unseen = float(-MANY / (EPISODES - MANY) * (draw.many - means)[0, 0])
    assert draw.worth * 10.0 == pytest.approx(means + unseen)


def field(curves: Array) -> Draw:
    """Curves without noise, [agents, LOOKS + 1]."""
    still = np.zeros_like(curves)
    return Draw(np.arange(len(curves)), curves, curves, still, still, curves, curves[:, -1])


def rising(agents: int) -> Draw:
    """Agent n is at n from the first look on."""
    return field(np.tile(np.arange(agents, dtype=float)[:, None], (1, LOOKS + 1)))


def test_the_budget_is_that_of_halving() -> None:
    assert methods.rungs(27) == [3, 9, 27]
    assert methods.cost(9, 27) == 9 * 3 + 3 * 6 + 1 * 18
    assert methods.cost(8, 27) == 8 * 3 + 3 * 6 + 1 * 18
    assert methods.cost(48, 9) == 48 * 1 + 16 * 2 + 6 * 6


def test_methods_on_curves_that_never_cross() -> None:
    draw = rising(12)
    assert methods.wide(draw, 9, 63) == (8, 7)
    assert methods.deep(draw, 9, 63) == (2, 9)  # agents 0 and 1 to the end, agent 2 for the rest
    assert (
        methods.halving(draw, 9, 63)
        == methods.shrunken(draw, 9, 63)
        == methods.oracle(draw, 9, 63)
        == (8, 27)
    )
    # At look 3 the worse four of eight end; the others have 60 - 24 looks, which is 9 each.
    assert methods.tournament(draw, 8, 60) == (7, 12)


def test_halving_stops_what_begins_slowly() -> None:
    curves = rising(9).few.copy()
    curves[8, :4] = -1.0
    assert methods.halving(field(curves), 9, 63) == (7, 27)
    assert methods.oracle(field(curves), 9, 63) == (8, 27)


def test_asha_promotes_whenever_a_third_has_been_surpassed() -> None:
    # Two at a time. 2 and 3 end as the third and fourth and go on, then 4 and 5. Of 2, 3 and 4 the
    # last goes on to the end. That makes 6 · 3 + 4 · 6 + 18 = 60 looks; 5 has earned the last rung
    # too, but 3 are left.
    assert methods.asha(rising(9), 9, 63) == (5, 9)
    assert methods.asha(rising(6), 9, 78) == (5, 27)
    # For 12 looks there are three agents' first rungs; 3 looks do not pay for a promotion, but for
    # a fourth agent.
    assert methods.asha(rising(9), 9, 12) == (3, 3)


def test_a_leader_with_more_episodes_is_shrunken_less() -> None:
    draw = rising(2)
    unsure = replace(
        draw,
        few=np.array([[0.0] * 28, [1.0] * 28]),
        many=np.array([[9.0] * 28, [-0.2] * 28]),
        few_variance=np.full((2, 28), float(FEW)),
        many_variance=np.full((2, 28), float(MANY)),
    )
    # Agent 1 leads by few episodes, so it is judged by many: then it is at -0.2 and agent 0 still
    # at 0.
    assert methods.shrunken(unsure, 2, 60) == (0, 27)


def test_replays_of_curves_that_never_cross() -> None:
    ends = np.arange(12, dtype=float)
    returns = np.linspace(0.0, 1.0, LOOKS + 1)[None, :, None] * ends[:, None, None] + np.zeros(
        (1, 1, EPISODES)
    )
    outcome = replay(Recording(returns, ends, defaults=3), 8, 2, range(4))
    assert all(values.shape == (4,) for values in outcome.worth.values())
    for method in methods.METHODS:
        assert outcome.estimate(method) <= outcome.estimate(ORACLE) <= 1.0
    assert outcome.estimate("successive halving") == pytest.approx(outcome.estimate(ORACLE))
    assert [values.tolist() for values in outcome.correlations.values()] == [
        pytest.approx([1.0] * 4)
    ] * 3
