"""Whatever pods, clocks and crashes do, steps, cost and active time are counted once.

Long histories by chance, and, by hypothesis, every order of what may happen, made as short as it
can be where it fails."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.lease_history import History

EXAMPLES = max(10, int(os.environ.get("PODRACER_FUZZ", "300")) // 30)
CHANCE = st.randoms(use_true_random=False)


@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_counts_everything_once(tmp_path, seed):
    history = History(tmp_path, random.Random(seed))
    for _ in range(160):
        history.step()
        history.check()
    history.end()
    # What was meant to happen did happen: a test that only ever waits proves nothing.
    assert {
        "leased",
        "leased on",
        "committed",
        "completed",
        "challenged",
        "scaled",
        "killed",
    } <= set(history.done)
    repeated = {
        "asked again",
        "committed again",
        "completed again",
        "challenge completed",
        "drained",
        "released",
    }
    assert len(repeated & set(history.done)) >= 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_of_teams_counts_everything_once(tmp_path, seed):
    history = History(tmp_path, random.Random(seed), learners=3)
    for _ in range(200):
        history.step()
        history.check()
    history.end()
    assert {"leased", "committed", "completed", "followed", "left", "set free", "killed"} <= set(
        history.done
    )


class Leases(RuleBasedStateMachine):
    """Each rule is something that happens; its details come from `chance`, which hypothesis makes
    simple as well."""

    @initialize(learners=st.sampled_from([1, 3]), chance=CHANCE)
    def begin(self, learners: int, chance: random.Random) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="leases-")
        self.history = History(Path(self.folder.name), chance, learners)

    @rule(chance=CHANCE)
    def ask(self, chance: random.Random) -> None:
        self.happen("ask", chance)

    @precondition(lambda self: self.history.held)
    @rule(what=st.sampled_from(["renew", "commit", "complete", "release"]), chance=CHANCE)
    def call(self, what: str, chance: random.Random) -> None:
        self.happen(what, chance)

    @rule(chance=CHANCE)
    def let_time_pass(self, chance: random.Random) -> None:
        self.happen("let_time_pass", chance)

    @rule(
        what=st.sampled_from(["restart_learner", "lose_pod", "kill_orchestrator", "drain_pod"]),
        chance=CHANCE,
    )
    def break_down(self, what: str, chance: random.Random) -> None:
        self.happen(what, chance)

    @rule(what=st.sampled_from(["scale", "suspend_or_resume"]), chance=CHANCE)
    def change_the_job(self, what: str, chance: random.Random) -> None:
        self.happen(what, chance)

    @invariant()
    def everything_is_counted_once(self) -> None:
        self.history.check()

    def happen(self, what: str, chance: random.Random) -> None:
        self.history.random = chance
        getattr(self.history, what)()
        self.history.set_followers_free()

    def teardown(self) -> None:
        if hasattr(self, "history"):
            self.history.end()
            self.folder.cleanup()


@pytest.mark.timeout(3600)
def test_every_order_of_what_may_happen_counts_everything_once():
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    chosen = settings(max_examples=EXAMPLES, stateful_step_count=40, suppress_health_check=slow)
    run_state_machine_as_test(Leases, settings=chosen)
