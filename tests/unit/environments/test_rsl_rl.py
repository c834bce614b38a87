"""Simulators behind rsl_rl's interface, and a critic that sees more than the actor."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import torch

from podracer_core.algorithms import (
    PPO,
    CohortConfig,
    MemberConfig,
    OnPolicy,
    generalized_advantages,
)
from podracer_core.buffers import Rollout
from podracer_core.catalogue import (
    BoxSpace,
    DictSpace,
    EnvironmentSpec,
    check_observation_space,
    to_json,
)
from podracer_core.checkpoint import Checkpoint, export_policy, load_policy
from podracer_core.collect import Collector
from podracer_core.environments import (
    VecEnvironment,
    evaluation_device,
    from_gymnasium,
    is_evaluated_beside,
    make_vec_environment,
)
from podracer_core.errors import InvalidInput
from podracer_core.networks import ACTOR, CRITIC
from support.carts import ACTOR_SIZE, LIMIT, WHOLE, Carts, CartsHere
from support.errors import raises

MEMBERS, WORLDS, HORIZON = 2, 4, 12


def cohort(*members: int, **shared: Any) -> CohortConfig:
    settings = {
        "horizon": HORIZON,
        "hidden_sizes": (8, 8),
        "epochs": 2,
        "normalize_observations": True,
    }
    return CohortConfig(
        "ppo", tuple(MemberConfig(f"agent{m}", 10 + m) for m in members), settings | shared
    )


def start(environment: VecEnvironment, *members: int, **shared: Any) -> tuple[OnPolicy, Collector]:
    algorithm = PPO(
        cohort(*members, **shared), environment.observation_space, environment.action_space
    )
    seeds = torch.tensor([10 + member for member in members])
    return algorithm, Collector(environment, algorithm.actor, seeds, random_ages=False)


def carts(*members: int, updates: int = 3, **shared: Any) -> tuple[OnPolicy, Rollout]:
    """After so many updates, and the rollout of the next."""
    algorithm, collector = start(CartsHere(len(members) * WORLDS), *members, **shared)
    for _ in range(updates):
        algorithm.update(collector.collect(HORIZON))
    return algorithm, collector.collect(HORIZON)


def checkpoint_of(algorithm: OnPolicy, environment: VecEnvironment) -> Checkpoint:
    assert environment.original_space is not None
    metadata = {
        "algorithm": "ppo",
        "hyperparameters": json.loads(json.dumps(dict(algorithm.cohort.shared))),
        "observation_space": to_json(environment.original_space),
        "action_space": to_json(from_gymnasium(environment.action_space)),
    }
    return Checkpoint(dict(algorithm.member_state(0)), metadata, {})


def test_groups_ends_and_members_lie_where_they_belong():
    environment = CartsHere(MEMBERS * WORLDS)
    _, collector = start(environment, *range(MEMBERS))
    simulator, acted = environment._simulator, []
    simulator.step = lambda action: (acted.append(action), Carts.step(simulator, action))[1]
    rollout = collector.collect(HORIZON)
    seen = rollout.observation
    assert seen.shape == (HORIZON + 1, MEMBERS, WORLDS, WHOLE)
    torch.testing.assert_close(
        seen[..., 2:4], (seen[..., 0] + seen[..., 1]).unsqueeze(-1).expand(-1, -1, -1, 2)
    )
    torch.testing.assert_close(seen[..., 4:6], seen[..., :2].square())
    assert environment.original_space == DictSpace(
        (
            ("actor", BoxSpace(-torch.inf, torch.inf, (3,))),
            ("critic", BoxSpace(-torch.inf, torch.inf, (4,))),
        )
    )
    # the simulator clips them, in a copy
    actions = torch.stack(acted).view(HORIZON, MEMBERS, WORLDS, 2)
    assert torch.equal(actions, rollout.action.clamp(-1, 1)) and not torch.equal(
        actions, rollout.action
    )
    ended = rollout.terminated | rollout.truncated
    assert (
        rollout.terminated.any()
        and rollout.truncated.any()
        and not (rollout.terminated & rollout.truncated).any()
    )
    assert torch.equal(rollout.final_observation[ended], seen[:-1][ended])
    assert torch.equal(rollout.final_observation[~ended], seen[1:][~ended])
    assert (seen[1:][ended][:, :2] == 0.1).all() and rollout.valid.all()
    environment.load_state(environment.state())
    assert (
        len(simulator.seeds) == 1
        and (simulator.place == 0.1).all()
        and not environment.resumes_episodes
    )
    assert environment.set_ages(torch.full((MEMBERS * WORLDS,), LIMIT - 1))
    assert environment.step(torch.zeros(MEMBERS * WORLDS, 2)).truncated.all()


def test_a_time_limit_is_bootstrapped_as_rsl_rl_does():
    algorithm, rollout = carts(0, 1)
    assert rollout.truncated.any()
    value, following = algorithm._preparation.values.of(rollout)
    gamma, lam = (algorithm._hyperparameters[name] for name in ("gamma", "gae_lambda"))
    ours = generalized_advantages(
        rollout.reward,
        value,
        following,
        rollout.terminated,
        rollout.truncated,
        rollout.valid,
        gamma,
        lam,
    )
    # rsl_rl 5.4, PPO.process_env_step and compute_returns.
    goes_on = (~(rollout.terminated | rollout.truncated)).float()
    reward = rollout.reward + gamma.view(-1, 1) * value * rollout.truncated
    values, advantage = (
        algorithm._preparation.values(rollout.observation),
        torch.zeros(MEMBERS, WORLDS),
    )
    for t in reversed(range(HORIZON)):
        delta = reward[t] + goes_on[t] * gamma.view(-1, 1) * values[t + 1] - values[t]
        advantage = delta + goes_on[t] * (gamma * lam).view(-1, 1) * advantage
        torch.testing.assert_close(ours[t], advantage)


@pytest.mark.parametrize("h_term", ["off", "segment"])
def test_an_actor_has_no_weights_of_what_it_does_not_see(h_term):
    algorithm, rollout = carts(0, 1, h_term=h_term)
    unseen = algorithm._networks.parameters["layers.0.weight"].detach()[:, ACTOR_SIZE:]
    assert (unseen[ACTOR::2] == 0).all() and (unseen[CRITIC::2] != 0).all()
    assert algorithm.member_state(0)["actor"]["layers.0.weight"].shape == (ACTOR_SIZE, 8)
    assert algorithm.member_state(0)["critic"]["layers.0.weight"].shape == (WHOLE, 8)
    whole, seen = rollout.observation[0], rollout.observation[0][..., :ACTOR_SIZE]
    assert torch.equal(algorithm.actor.greedy(whole), algorithm.actor.greedy(seen))


def test_a_member_trains_as_it_would_alone_and_goes_on_from_its_state():
    together, rollout = carts(0, 1)
    alone, single = carts(1)
    torch.testing.assert_close(rollout.observation[:, 1:], single.observation)
    other = PPO(cohort(1), *_spaces())
    other.load_member_state(0, together.member_state(1))
    for algorithm in (alone, other):
        for group, tensors in algorithm.member_state(0).items():
            for name, tensor in tensors.items():
                torch.testing.assert_close(
                    tensor, together.member_state(1)[group][name], atol=1e-5, rtol=1e-4
                )


def _spaces() -> tuple[Any, Any]:
    environment = CartsHere(1)
    return environment.observation_space, environment.action_space


def test_the_actor_alone_is_exported(tmp_path):
    algorithm, rollout = carts(0)
    checkpoint = checkpoint_of(algorithm, CartsHere(1))
    whole = rollout.observation[:-1].flatten(0, 2)
    expected = algorithm.actor.greedy(whole.unsqueeze(0))[0]
    torch.testing.assert_close(load_policy(checkpoint)(whole[:, :ACTOR_SIZE]), expected)
    compared = export_policy(
        checkpoint, tmp_path / "policy", "torchscript", observed=whole[:, :ACTOR_SIZE]
    )
    assert compared.observations > len(whole)
    exported = torch.jit.load(tmp_path / "policy")  # type: ignore[no-untyped-call]
    torch.testing.assert_close(exported(whole[:, :ACTOR_SIZE]), expected)


def test_what_cannot_be_is_refused():
    class Other(CartsHere):
        observation_groups: ClassVar = {"actor": ["policy"], "critic": ["policy", "camera"]}

    with pytest.raises(InvalidInput, match="group camera"):
        Other(1)
    space = CartsHere(1).original_space
    assert space is not None
    check_observation_space("a2c", space)
    with raises(InvalidInput, "OBSERVATION_SPACE_UNSUPPORTED"):
        check_observation_space("sac", space)


def test_a_broken_world_is_set_aside():
    environment = CartsHere(3)
    environment.reset(torch.arange(3))
    environment._simulator.place[1] = torch.nan
    step = environment.step(torch.zeros(3, 2))
    assert step.valid.tolist() == [True, False, True] and step.truncated.tolist() == [
        False,
        True,
        False,
    ]
    assert (
        step.reward[1] == 0
        and (step.observation[1] == 0).all()
        and (step.final_observation[1] == 0).all()
    )


def test_mjlab_evaluates_on_the_device_that_it_trains_on():
    """Only MuJoCo's tasks have C MuJoCo to be evaluated by."""
    spec = EnvironmentSpec("mjlab", kwargs={"task": "Mjlab-Velocity-Flat-Unitree-Go1"})
    assert evaluation_device(spec, "cuda") == "cuda"
    assert not is_evaluated_beside(spec, "cuda")


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # Warp compiles its kernels, once
def test_a_round_in_mjlab(tmp_path):
    pytest.importorskip("mjlab", reason="needs the extra podracer-core[mjlab]")
    kwargs = {"task": "Mjlab-Velocity-Flat-Unitree-Go1"}
    environment = make_vec_environment(
        EnvironmentSpec("mjlab", kwargs=kwargs, max_episode_steps=3), MEMBERS * 2
    )
    assert (environment.max_episode_steps, environment.observation_space.shape) == (3, (48 + 72,))
    algorithm, collector = start(environment, *range(MEMBERS))
    rollout = collector.collect(4)
    assert (
        rollout.truncated[2].all() and rollout.valid.all() and rollout.observation.isfinite().all()
    )
    before = algorithm.actor_state()["layers.0.weight"]
    metrics = algorithm.update(rollout)
    assert metrics["active"].all() and metrics["value_loss"].isfinite().all()
    assert (
        before.shape == (MEMBERS, 48, 8)
        and (algorithm.actor_state()["layers.0.weight"] != before).any()
    )
    export_policy(checkpoint_of(algorithm, environment), tmp_path / "policy", "torchscript")
    environment.close()
