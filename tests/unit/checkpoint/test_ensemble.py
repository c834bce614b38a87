"""Several policies that act as one: exactly the mean or the vote of what each would do."""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.checkpoint import (
    READERS,
    Checkpoint,
    combine,
    ensemble_rule,
    evaluate_checkpoints,
    export_ensemble,
    load_actor,
    load_ensemble,
    load_ensemble_policy,
    load_policy,
    open_packed_policy,
    pack_policy,
)
from podracer_core.errors import DataCorrupted, InvalidInput
from support.errors import raises
from support.policies import random_policy, trained_policies

OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
BOX = gymnasium.spaces.Box(-2.0, 2.0, (1,))
SMALL: dict[str, Any] = {"hidden_sizes": (8, 8)}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class TestRules:
    def test_the_mean_of_actions(self):
        # three policies, one row, two numbers
        actions = torch.tensor([[[0.5, -1.0]], [[1.0, 0.0]], [[0.0, 4.0]]])
        assert torch.equal(combine(actions, "mean"), torch.tensor([[0.5, 1.0]]))

    def test_most_votes_win_and_the_best_policy_decides_between_as_many(self):
        choices = torch.tensor(
            [  # five policies, the best first; one column a row
                [0, 0, 3, 4],
                [1, 1, 1, 3],
                [1, 2, 2, 2],
                [2, 2, 2, 1],
                [1, 1, 1, 0],
            ]
        )
        # 1 has three of five; 1 and 2 have two each, and the second policy says 1, twice; all
        # differ: the best decides.
        assert combine(choices, "vote").tolist() == [1, 1, 1, 4]

    def test_each_dimension_has_its_own_vote(self):
        choices = torch.tensor([[[0, 1, 1]], [[2, 0, 1]], [[2, 1, 0]]])
        assert combine(choices, "vote").tolist() == [[2, 1, 1]]

    @pytest.mark.parametrize("value", [0.1, 1 / 3, -1.7, 1e-30, 3e30])
    @pytest.mark.parametrize("policies", [1, 2, 3, 7, 49])
    def test_the_mean_of_one_number_is_that_number(self, value, policies):
        actions = torch.full((policies, 1), value)
        assert torch.equal(combine(actions, "mean"), actions[0])

    def test_the_rule_follows_the_action_space(self):
        assert ensemble_rule(BOX) == ensemble_rule(BOX, "mean") == "mean"
        for space in (
            gymnasium.spaces.Discrete(3),
            gymnasium.spaces.MultiDiscrete([2, 3]),
            gymnasium.spaces.MultiBinary(2),
        ):
            assert ensemble_rule(space, "") == ensemble_rule(space, "vote") == "vote"
            with raises(InvalidInput, "ENSEMBLE_RULE", match="use vote"):
                ensemble_rule(space, "mean")
        with raises(InvalidInput, "ENSEMBLE_RULE", match="alike: use"):
            ensemble_rule(BOX, "vote")
        with raises(InvalidInput, "ENSEMBLE_RULE", match="rule 'median'"):
            ensemble_rule(BOX, "median")


class TestActing:
    def test_policies_of_several_algorithms_and_shapes(self):
        """Two networks are alike and act in one call, the others in one each; the order is the
        ranking's."""
        policies = [
            random_policy("ppo", OBSERVATIONS, BOX, 1, **SMALL),
            random_policy("sac", OBSERVATIONS, BOX, 2, **SMALL),
            random_policy("ppo", OBSERVATIONS, BOX, 3, hidden_sizes=(16,)),
            random_policy("ppo", OBSERVATIONS, BOX, 4, learning_rate=1e-4, horizon=64, **SMALL),
            random_policy("td3", OBSERVATIONS, BOX, 5, **SMALL),
        ]
        ensemble = load_ensemble(policies)
        assert (ensemble.policies, len(ensemble._actors)) == (5, 4)
        blocks = torch.randn(6, 32, 3)
        alone = torch.stack([load_actor(policy).repeat(6).greedy(blocks) for policy in policies])
        assert torch.equal(ensemble.repeat(6).greedy(blocks), alone.double().mean(0).float())
        assert torch.equal(
            ensemble.repeat(6).greedy(blocks), ensemble.repeat(2).repeat(3).greedy(blocks)
        )

    def test_a_tie_goes_to_the_better_policy_whichever_network_it_has(self):
        actions = gymnasium.spaces.Discrete(5)
        policies = [
            random_policy("ppo", OBSERVATIONS, actions, 1, **SMALL),
            random_policy("dqn", OBSERVATIONS, actions, 2, **SMALL),
            random_policy("ppo", OBSERVATIONS, actions, 3, **SMALL),
        ]
        observation = torch.randn(1, 256, 3)
        for order in itertools.permutations(range(3)):
            ranked = [policies[index] for index in order]
            alone = torch.stack([load_actor(policy).greedy(observation)[0] for policy in ranked])
            first, second, third = alone.tolist()
            expected = [b if b == c else a for a, b, c in zip(first, second, third, strict=True)]
            assert load_ensemble(ranked).greedy(observation)[0].tolist() == expected
            assert expected not in (first, second, third)

    @pytest.mark.parametrize(
        "actions",
        [
            gymnasium.spaces.MultiDiscrete([3, 2, 4], start=[0, 5, 1]),
            gymnasium.spaces.MultiBinary(4),
        ],
        ids=["multi_discrete", "multi_binary"],
    )
    def test_several_choices_at_once(self, actions):
        policies = [
            random_policy("ppo", OBSERVATIONS, actions, seed, **SMALL) for seed in (1, 2, 3)
        ]
        observation = torch.randn(1, 32, 3)
        alone = torch.stack([load_actor(policy).greedy(observation)[0] for policy in policies])
        expected = [
            [
                _winner([int(choices[row, column]) for choices in alone])
                for column in range(alone.shape[2])
            ]
            for row in range(32)
        ]
        assert load_ensemble(policies).greedy(observation)[0].tolist() == expected

    def test_masks_are_obeyed(self):
        actions = gymnasium.spaces.Discrete(6)
        policies = [
            random_policy("ppo", OBSERVATIONS, actions, seed, **SMALL) for seed in (1, 2, 3)
        ]
        mask = torch.rand(2, 32, 6) < 0.4
        mask[..., 5] |= ~mask.any(-1)
        observation = torch.randn(2, 32, 3)
        chosen = load_ensemble(policies).repeat(2).greedy(observation, mask)
        assert mask.gather(-1, chosen.unsqueeze(-1)).all()
        free = load_ensemble(policies).repeat(2).greedy(observation)
        assert not mask.gather(-1, free.unsqueeze(-1)).all(), "else the masks had nothing to forbid"

    @pytest.mark.parametrize("environment", ["Pendulum-v1", "CartPole-v1"])
    def test_copies_of_one_policy_act_exactly_as_the_one(self, environment):
        (policy,) = trained_policies(environment, [3], updates=3, horizon=32, envs=8)
        for episodes, copies in ((8, 2), (32, 3), (40, 5)):
            spec, seeds = EnvironmentSpec(id=environment), list(range(episodes))
            alone = evaluate_checkpoints([policy], spec, seeds)
            assert evaluate_checkpoints([policy] * copies, spec, seeds) == alone


class TestRefusals:
    @pytest.fixture
    def policy(self) -> Checkpoint:
        return random_policy("ppo", OBSERVATIONS, BOX, 1, **SMALL)

    def refused(self, *policies: Checkpoint, rule: str | None = None) -> InvalidInput:
        with pytest.raises(InvalidInput) as refused:
            load_ensemble(policies, rule)
        with pytest.raises(InvalidInput) as refused_too:
            load_ensemble_policy(policies, rule)
        assert refused.value.message == refused_too.value.message
        return refused.value

    def test_other_spaces(self, policy):
        other = random_policy(
            "ppo", OBSERVATIONS, gymnasium.spaces.Box(-1.0, 1.0, (1,)), 2, **SMALL
        )
        error = self.refused(policy, other)
        assert error.reason == "ENSEMBLE_SPACES"
        assert "Box(-2.0, 2.0, (1,), float32)" in error.message
        assert "Box(-1.0, 1.0, (1,), float32)" in error.message
        assert all(f"agents/a{seed}" in error.message for seed in (1, 2))
        wider = random_policy("ppo", gymnasium.spaces.Box(-1, 1, (4,)), BOX, 2, **SMALL)
        assert self.refused(policy, wider).reason == "ENSEMBLE_SPACES"

    def test_another_environment(self, policy):
        other = random_policy("ppo", OBSERVATIONS, BOX, 2, environment="Reacher-v5", **SMALL)
        error = self.refused(policy, other)
        assert error.reason == "ENSEMBLE_ENVIRONMENT"
        assert "agents/a1 was trained in Pendulum-v1" in error.message
        assert "agents/a2 in Reacher-v5" in error.message

    def test_other_arguments_are_another_environment(self, policy):
        changed = EnvironmentSpec(id="Pendulum-v1", kwargs={"g": 1.5}).to_metadata()
        other = replace(policy, metadata={**policy.metadata, "environment": changed})
        assert '"g": 1.5' in self.refused(policy, other).message

    def test_bad_rules_and_no_policy(self, policy):
        assert self.refused(policy, policy, rule="vote").reason == "ENSEMBLE_RULE"
        assert "at least one" in self.refused().message


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize("form", ["torch_export", "torchscript", "onnx"])
@pytest.mark.parametrize(
    "actions", [BOX, gymnasium.spaces.Discrete(4, start=2)], ids=["mean", "vote"]
)
def test_an_export_acts_as_they_do_together(tmp_path, form, actions):
    other = "sac" if actions is BOX else "dqn"
    policies = [
        random_policy("ppo", OBSERVATIONS, actions, 1, **SMALL),
        random_policy(other, OBSERVATIONS, actions, 2, **SMALL),
        random_policy("ppo", OBSERVATIONS, actions, 3, hidden_sizes=(16,)),
    ]
    path = tmp_path / "policy.pt2"
    export_ensemble(policies, path, form)
    extra = {"podracer.json": ""}
    module = READERS[form](path)
    if form == "torchscript":
        torch.jit.load(path, _extra_files=extra)
    elif form == "torch_export":
        torch.export.load(path, extra_files=extra)
    else:
        extra = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    metadata = json.loads(extra["podracer.json"])
    assert metadata["ensemble"] == ("mean" if actions is BOX else "vote")
    assert [policy["agent"][-2:] for policy in metadata["policies"]] == ["a1", "a2", "a3"]
    for rows in (1, 2, 64):
        observation = torch.randn(rows, 3)
        alone = torch.stack([load_policy(policy)(observation) for policy in policies])
        if actions is BOX:
            assert torch.allclose(module(observation), alone.mean(0), atol=1e-6)
        else:
            assert module(observation).tolist() == [
                _winner(column) for column in alone.t().tolist()
            ]


def test_the_best_of_a_few_trained_agents_are_at_least_their_median_together():
    """Six agents of PPO on CartPole, half trained: the three best, and most other three of them."""
    knobs = {
        "minibatch_size": 1024,
        "epochs": 4,
        "learning_rate": 2e-3,
        "value_coefficient": 0.5,
        "normalize_rewards": False,
    }
    policies = trained_policies(
        "CartPole-v1", list(range(6)), updates=6, horizon=32, envs=32, **knobs
    )
    spec, seeds = EnvironmentSpec(id="CartPole-v1"), list(range(1000, 1100))
    alone = [evaluate_checkpoints([policy], spec, seeds) for policy in policies]
    ranked = sorted(range(6), key=lambda index: -alone[index].mean)
    margins = []
    for three in itertools.combinations(ranked, 3):
        together = evaluate_checkpoints([policies[index] for index in three], spec, seeds)
        assert together.episodes == 100
        assert together.lower_bound <= together.mean <= together.upper_bound
        margins.append(together.mean - statistics.median(alone[index].mean for index in three))
    assert margins[0] >= 0, "the three best"
    assert sum(margin >= 0 for margin in margins) >= 14, margins


class TestPacking:
    def test_a_policy_comes_back_bit_for_bit(self, tmp_path):
        policy = random_policy("sac", OBSERVATIONS, BOX, 4, **SMALL)
        data = pack_policy(policy)
        assert data == pack_policy(policy)
        (tmp_path / "policy").write_bytes(data)
        again = open_packed_policy(tmp_path / "policy")
        assert set(again.groups) == {"actor", "normalizer"}
        for group, tensors in again.groups.items():
            assert tensors.keys() == policy.groups[group].keys()
            assert all(
                torch.equal(tensor, policy.groups[group][name]) for name, tensor in tensors.items()
            )
        assert again.metadata == json.loads(json.dumps(policy.metadata))
        assert torch.equal(
            load_policy(again)(torch.ones(2, 3)), load_policy(policy)(torch.ones(2, 3))
        )

    @pytest.mark.parametrize("data", [b"", b"junk", bytes(range(256)) * 8])
    def test_any_other_file_is_refused(self, tmp_path, data):
        (tmp_path / "policy").write_bytes(data)
        with pytest.raises(DataCorrupted, match="a packed policy"):
            open_packed_policy(tmp_path / "policy")


def _winner(choices: list[int]) -> int:
    """The most frequent one, the first of several."""
    return max(choices, key=lambda choice: (choices.count(choice), -choices.index(choice)))
