"""What a member takes over from checkpoints, and what stays its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from podracer_core.algorithms import Algorithm, MemberState
from podracer_core.collect import Collector
from podracer_core.errors import InvalidInput
from podracer_core.training import inherit, resume

Make = Callable[..., Algorithm]


@pytest.fixture
def donor(make_algorithm: Make, make_collector: Callable[..., Collector]) -> MemberState:
    """Trained for three updates, so that nothing of it is what a fresh agent has."""
    algorithm = make_algorithm((5,))
    collector = make_collector(algorithm)
    for _ in range(3):
        algorithm.update(collector.collect(16, policy_version=algorithm.version))
    return algorithm.member_state(0)


def equal(first: MemberState, second: MemberState, group: str) -> bool:
    return all(torch.equal(tensor, second[group][name]) for name, tensor in first[group].items())


def test_a_copy_has_the_donors_weights_optimizer_and_normalizer_bit_for_bit(make_algorithm, donor):
    algorithm = make_algorithm((1, 2))
    neighbour, own = algorithm.member_state(0), algorithm.member_state(1)
    inherit(algorithm, 1, "copy", [(donor, 0.0)], keep_optimizer=True)
    child = algorithm.member_state(1)
    assert all(
        equal(donor, child, group) for group in ("actor", "critic", "optimizer", "normalizer")
    )
    assert equal(own, child, "random")
    assert all(equal(neighbour, algorithm.member_state(0), group) for group in neighbour)


def test_without_the_optimizer_a_copy_starts_with_a_fresh_one(make_algorithm, donor):
    algorithm = make_algorithm((1,))
    own = algorithm.member_state(0)
    inherit(algorithm, 0, "copy", [(donor, 0.0)], keep_optimizer=False)
    assert equal(own, algorithm.member_state(0), "optimizer")
    assert equal(donor, algorithm.member_state(0), "actor")


def test_a_copy_learns_with_its_own_hyperparameters(make_algorithm, make_collector, donor):
    changes = []
    for rate in (1e-4, 1e-2):
        algorithm = make_algorithm((1,))
        algorithm.set_hyperparameters(0, {"learning_rate": rate})
        inherit(algorithm, 0, "copy", [(donor, 0.0)], keep_optimizer=True)
        algorithm.update(make_collector(algorithm).collect(16))
        moved = (
            algorithm.member_state(0)["actor"]["layers.0.weight"]
            - donor["actor"]["layers.0.weight"]
        )
        changes.append(float(moved.abs().mean()))
    assert changes[1] > 20 * changes[0] > 0


def test_a_resumed_member_goes_on_with_everything(make_algorithm, donor):
    algorithm = make_algorithm((5,))
    resume(algorithm, 0, donor)
    state = algorithm.member_state(0)
    assert all(equal(donor, state, group) for group in donor)
    assert state["random"]["step_count"] == 48


def test_noise_moves_the_actor_and_the_same_seed_moves_it_alike(make_algorithm, donor):
    algorithm = make_algorithm((1, 2))
    for member in (0, 1):
        inherit(
            algorithm,
            member,
            "noise",
            [(donor, 0.0)],
            keep_optimizer=False,
            noise_scale=0.1,
            noise_seed=3,
        )
    first, second = algorithm.member_state(0), algorithm.member_state(1)
    assert equal(first, second, "actor")
    assert not equal(donor, first, "actor")
    assert equal(donor, first, "critic")


def test_a_fusion_is_the_weighted_mean(make_algorithm, donor):
    other = make_algorithm((9,)).member_state(0)
    algorithm = make_algorithm((1,))
    inherit(algorithm, 0, "fuse", [(donor, 3.0), (other, 1.0)], keep_optimizer=False)
    fused = algorithm.member_state(0)["actor"]["layers.0.weight"]
    expected = 0.75 * donor["actor"]["layers.0.weight"] + 0.25 * other["actor"]["layers.0.weight"]
    assert torch.allclose(fused, expected, rtol=1e-6, atol=1e-7)


def test_a_fusion_without_weights_weighs_all_alike(make_algorithm, donor):
    other = make_algorithm((9,)).member_state(0)
    algorithm = make_algorithm((1,))
    inherit(algorithm, 0, "fuse", [(donor, 0.0), (other, 0.0)], keep_optimizer=False)
    fused = algorithm.member_state(0)["critic"]["layers.0.bias"]
    expected = 0.5 * donor["critic"]["layers.0.bias"] + 0.5 * other["critic"]["layers.0.bias"]
    assert torch.allclose(fused, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "count"), [("copy", 0), ("copy", 2), ("noise", 2), ("fuse", 1)])
def test_a_wrong_number_of_parents_is_refused(make_algorithm, donor, kind, count):
    with pytest.raises(InvalidInput, match="parent"):
        inherit(make_algorithm((1,)), 0, kind, [(donor, 1.0)] * count, keep_optimizer=False)  # type: ignore[arg-type]


def test_a_donor_of_another_width_is_refused(make_algorithm):
    wide = make_algorithm((1,), hidden_sizes=(32, 32)).member_state(0)
    with pytest.raises(InvalidInput):
        inherit(make_algorithm((1,)), 0, "copy", [(wide, 1.0)], keep_optimizer=False)
