"""How many members a cohort gets: what measured tables of throughput lead to, round by round."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from podracer_core.evolution import Throughput, member_limit

# Environment steps of the whole cohort for each device second, by cohort size.
# DESIGN §5: CartPole, two cores
PPO_ON_CPU = {1: 80_000.0, 2: 110_000.0, 4: 140_000.0, 8: 170_000.0, 16: 175_000.0}
# launches dominate: nearly free
MLP_ON_GPU = {1: 1_000.0, 2: 1_980.0, 4: 3_900.0, 8: 7_700.0, 16: 15_000.0}
SAC_ON_CPU = {1: 100.0, 2: 101.0, 4: 99.0, 8: 100.0, 16: 98.0}  # 256 × 256: arithmetic dominates
TOO_LARGE = {1: 90.0, 2: 150.0, 4: 200.0, 8: 160.0, 16: 80.0}  # eight no longer fit into the cache


def sizes_tried(table: Mapping[int, float], most: int, first: int, rounds: int = 30) -> list[int]:
    """The cohort sizes of rounds in a row of 10 s each: `first` at most in the first round, then as
    limited."""
    measured: dict[int, Throughput] = {}
    sizes = []
    for _ in range(rounds):
        size = min(member_limit(measured, most), first if not sizes else most)
        for _ in range(size):
            former = measured.get(size, Throughput(0.0, 0.0, 0.0))
            measured[size] = former.with_member(int(table[size] * 10 / size), 10 / size, size)
        sizes.append(size)
    return sizes


def test_until_something_is_known_the_pod_may_be_full():
    assert member_limit({}, 16) == 16
    # one round may have been warming up
    assert member_limit({4: Throughput(1000.0, 10.0, 1.0)}, 16) == 16


def test_nearly_free_packing_stays_full_after_one_look_at_less():
    assert sizes_tried(MLP_ON_GPU, 8, first=8, rounds=10) == [8, 8, 8, 8, 4, 4, 8, 8, 8, 8]


@pytest.mark.parametrize("table", [MLP_ON_GPU, PPO_ON_CPU])
def test_where_a_cohort_begins_small_it_grows_while_that_pays(table):
    measured = {2: Throughput(table[2] * 20, 20.0, 2.0)}
    assert member_limit(measured, 16) == 4
    measured[4] = Throughput(table[4] * 20, 20.0, 2.0)
    assert member_limit(measured, 16) == 8


def test_flat_throughput_does_not_grow_and_has_no_reason_to_shrink():
    assert sizes_tried(SAC_ON_CPU, 8, first=8)[-20:] == [8] * 20
    assert (
        member_limit({size: Throughput(SAC_ON_CPU[size] * 20, 20.0, 2.0) for size in (2, 4)}, 16)
        == 4
    )


def test_what_is_slower_in_total_is_given_up():
    assert sizes_tried(TOO_LARGE, 8, first=8)[-20:] == [4] * 20
    assert sizes_tried(TOO_LARGE, 16, first=16)[-16:] == [4] * 16


def test_a_larger_size_that_gains_little_is_the_last_one_tried():
    assert (
        member_limit(
            {size: Throughput(PPO_ON_CPU[size] * 20, 20.0, 2.0) for size in (4, 8, 16)}, 64
        )
        == 16
    )


def test_the_hard_limit_holds_whatever_has_been_measured():
    measured = {size: Throughput(rate * 50, 50.0, 5.0) for size, rate in MLP_ON_GPU.items()}
    for most in range(1, 17):
        assert 1 <= member_limit(measured, most) <= most


def test_a_machine_that_has_become_slower_is_noticed():
    size = Throughput(0.0, 0.0, 0.0)
    for _ in range(40):
        size = size.with_member(1000, 1.0, 4)
    for _ in range(4 * 16):
        size = size.with_member(500, 1.0, 4)
    assert size.env_steps_per_s == pytest.approx(500, rel=0.2)
