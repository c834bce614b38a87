"""What a system that trains populations promises, checked on ours, Ray Tune's PBT and AgileRL: see docs/conformance.md.

The peers are no dependencies: they are skipped where they are missing, and what they do is recorded, not required.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.conformance.learners import Passage

pytestmark = pytest.mark.thorough
SYSTEMS = {"podracer": "podracer_core", "ray_tune": "ray.tune", "ray_tune_plain": "ray.tune", "agilerl": "agilerl"}
"""Name -> the package that it needs."""


def _parameter(name: str) -> Any:
    marks = [pytest.mark.xdist_group(f"conformance-{name}")]
    if name != "podracer":
        marks.append(pytest.mark.xfail(reason="recorded, not required", strict=False))
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module", params=map(_parameter, SYSTEMS))
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    name = request.param
    pytest.importorskip(SYSTEMS[name])
    module = import_module(f"tests.conformance.{name.removesuffix('_plain')}_system")
    made = module.System(tmp_path_factory.mktemp(name), name)
    yield made
    made.close()


def shown(system: Any, what: str, *arguments: Any) -> Any:
    """The test is skipped where the system has nothing of the kind."""
    return getattr(system, what)(*arguments) if hasattr(system, what) else pytest.skip("not offered")


def passage_of(system: Any, occasion: str) -> Passage:
    passage: Passage | None = shown(system, "passages").get(occasion)
    return passage or pytest.skip("not offered")


@pytest.mark.parametrize("occasion", ["exploit", "restore", "resume", "move"])
def test_a_perturbed_learning_rate_is_used(system: Any, occasion: str) -> None:
    passage = passage_of(system, occasion)
    assert passage.used_rate == pytest.approx(passage.rate, rel=1e-3)


@pytest.mark.parametrize("occasion", ["restore", "resume", "move"])
def test_counters_are_exact(system: Any, occasion: str) -> None:
    passage = passage_of(system, occasion)
    assert passage.after.counter == passage.before.counter + passage.counted > passage.counted


def test_a_donors_weights_and_optimizer_arrive(system: Any) -> None:
    donor, recipient = shown(system, "exploited")
    assert donor.first_moment.any()
    assert recipient.equals(donor)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_and_not_the_worst_propagates(system: Any, mode: str) -> None:
    if mode not in system.modes:
        pytest.skip("not offered")
    sign = 1 if mode == "max" else -1
    copied, replaced, everyone = ([sign * score for score in scores] for scores in shown(system, "selection", mode))
    assert min(everyone) in replaced
    assert min(copied) > max(replaced)


def test_a_resumed_run_is_bit_equal(system: Any) -> None:
    whole, resumed = shown(system, "resumed")
    assert len(whole) == len(resumed) > 0
    assert all(one.equals(other) for one, other in zip(whole, resumed, strict=True))


def test_no_agent_is_lost_with_a_killed_worker(system: Any) -> None:
    before, after = shown(system, "agents_around_a_kill")
    assert after == before != set()
