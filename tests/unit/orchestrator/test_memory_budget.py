"""How much memory pods may take."""

from __future__ import annotations

from podracer_orchestrator.jobs import PodKind
from podracer_orchestrator.pool import (
    PAUSE_S,
    SETTLE_S,
    MemoryBudget,
    MemoryNeeds,
    MemoryView,
)

GIB = 1 << 30


def view(available: float, pods: int = 2, pod_gib: float = 1.0) -> MemoryView:
    size = int(pod_gib * GIB)
    return MemoryView(16 * GIB, int(available * GIB), pods * size, pods * size, size if pods else 0)


def test_it_grows_into_what_is_free_but_for_a_reserve():
    assert MemoryBudget().update(view(8.0), 0.0) / GIB == 2 + 8 - 1.6


def test_what_runs_stays_while_nothing_is_short():
    assert MemoryBudget().update(view(1.0, pods=4, pod_gib=3.0), 0.0) == 12 * GIB


def test_short_memory_gives_up_one_pod_at_a_time_and_then_waits_before_it_grows():
    budget = MemoryBudget()
    assert budget.update(view(0.5, pods=4), 100.0) == 3 * GIB
    # the first one is still on its way out
    assert budget.update(view(0.5, pods=3), 100.0 + SETTLE_S / 2) == 3 * GIB
    assert budget.update(view(0.5, pods=3), 100.0 + SETTLE_S) == 2 * GIB
    given_up_at = 100.0 + SETTLE_S
    assert budget.update(view(9.0, pods=2), given_up_at + PAUSE_S / 2) == 2 * GIB
    assert budget.update(view(9.0, pods=2), given_up_at + PAUSE_S) > 9 * GIB


def test_a_need_is_what_was_measured_and_at_least_what_is_said_else_a_guess():
    needs, kind = MemoryNeeds(), PodKind()
    assert needs.of(kind) == kind.memory_bytes
    assert needs.of(kind, 5 * GIB) == 5 * GIB
    needs.note(kind.name, 2 * GIB)
    needs.note(kind.name, GIB)
    assert needs.of(kind) == needs.of(kind, GIB) == 2 * GIB
    assert needs.of(kind, 5 * GIB) == 5 * GIB
    assert needs.of(PodKind(False, 1)) > PodKind().memory_bytes
