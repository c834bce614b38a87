"""A learner that cannot be sure of its lease writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from podracer_core.errors import Fenced, NotFound, Unavailable
from podracer_core.storage import FolderStore, ObjectInfo
from podracer_learner.lease import FencedStore, LeaseGuard


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(clock: Clock) -> LeaseGuard:
    return LeaseGuard("projects/p/leases/l", 7, clock)


def test_nothing_is_ours_before_the_first_renewal(guard):
    with pytest.raises(Fenced, match="renewed"):
        guard.check()
    assert guard.remaining_s == 0.0


def test_the_term_counts_from_when_the_renewal_was_sent(guard, clock):
    clock.now = 103.0  # the answer took 3 s
    guard.extend(100.0, 10.0)
    clock.now = 108.9  # 10 s, less a margin of 1 s
    guard.check()
    clock.now = 109.1
    with pytest.raises(Fenced, match="term ended"):
        guard.check()


def test_renewals_carry_it_on(guard, clock):
    guard.extend(100.0, 10.0)
    for _ in range(20):
        clock.now += 3.3
        guard.extend(clock.now, 10.0)
        guard.check()


def test_a_renewal_that_comes_after_the_end_brings_nothing_back(guard, clock):
    guard.extend(100.0, 10.0)
    clock.now = 120.0  # stopped for 20 s
    with pytest.raises(Fenced):
        guard.extend(119.0, 10.0)
    with pytest.raises(Fenced):
        guard.check()


def test_expired_stays_expired_even_without_a_check_in_between(guard, clock):
    guard.extend(100.0, 10.0)
    clock.now = 120.0
    with pytest.raises(Fenced):
        guard.check()
    with pytest.raises(Fenced):
        guard.extend(120.0, 10.0)


def test_an_answer_that_took_longer_than_the_term_gives_nothing(guard, clock):
    clock.now = 112.0
    with pytest.raises(Fenced):
        guard.extend(100.0, 10.0)


def test_a_late_answer_does_not_shorten_a_newer_one(guard, clock):
    clock.now = 105.0
    guard.extend(104.0, 10.0)
    guard.extend(100.0, 10.0)
    clock.now = 112.0
    guard.check()


def test_a_revoked_lease_says_why(guard):
    guard.extend(100.0, 10.0)
    guard.revoke("a newer lease holds the work")
    with pytest.raises(Fenced, match="a newer lease"):
        guard.check()
    assert guard.remaining_s == 0.0


def test_short_terms_keep_a_tenth(guard, clock):
    guard.extend(100.0, 1.0)
    assert guard.remaining_s == pytest.approx(0.9)


def test_the_store_takes_nothing_once_the_lease_is_gone(guard, clock, tmp_path):
    folder = FolderStore(tmp_path)
    store = FencedStore(folder, guard, lambda: None, 0.0)
    with pytest.raises(Fenced):
        store.put("before", b"x")
    guard.extend(100.0, 10.0)
    store.put("held", b"x")
    clock.now = 115.0
    with pytest.raises(Fenced):
        store.put("after", b"x")
    assert [info.key for info in folder.list()] == ["held"]
    assert store.get("held") == b"x", "reading is allowed"


class AwayStore(FolderStore):
    """Does not answer `failures` times."""

    failures = 0

    def stat(self, key: str) -> ObjectInfo:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        return super().stat(key)

    def read_chunks(self, key: str, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        yield from super().read_chunks(key, chunk_bytes)


def test_a_store_that_is_away_is_waited_for(guard, tmp_path):
    away = AwayStore(tmp_path)
    away.put("key", b"value")
    store = FencedStore(away, guard, lambda: None, 30.0)
    for read, expected in (
        (lambda: store.get("key"), b"value"),
        (lambda: store.stat("key").size_bytes, 5),
    ):
        away.failures = 2
        assert read() == expected
        assert not away.failures
    with pytest.raises(NotFound):
        store.get("absent")


def test_waiting_for_the_store_has_an_end(guard, tmp_path):
    away = AwayStore(tmp_path)
    away.failures = 1 << 30
    with pytest.raises(Unavailable):
        FencedStore(away, guard, lambda: None, 0.0).get("key")

    def stopped() -> None:
        raise Fenced("told to stop")

    with pytest.raises(Fenced):
        FencedStore(away, guard, stopped, 30.0).get("key")
