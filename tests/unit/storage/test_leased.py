"""Keys and URLs of a lease are renewed in time, and serve to their end while nobody gives new
ones."""

from __future__ import annotations

import pytest

from podracer_core.errors import Fenced, Unavailable
from podracer_core.storage import StoreAccess, StoreKeys
from podracer_platform.storage import LeaseAccess


class Orchestrator:
    """Gives numbered keys and URLs that are valid for 900 s, or raises `error`; its own clock."""

    def __init__(self) -> None:
        self.now, self.count = 1000.0, 0
        self.error: Exception | None = None
        self.access = LeaseAccess(self.ask, lambda: self.now)

    def ask(self, method: str, key: str) -> StoreAccess:
        self.count += 1
        if self.error is not None:
            raise self.error
        if key:
            return StoreAccess(900.0, url=f"{method} {key} {self.count}")
        return StoreAccess(900.0, StoreKeys(f"key-{self.count}", "s", "t"))


def test_keys_are_asked_for_again_after_two_thirds_of_their_time():
    orchestrator = Orchestrator()
    for now, number in ((1000.0, 1), (1599.0, 1), (1601.0, 2), (2200.0, 2), (2202.0, 3)):
        orchestrator.now = now
        assert orchestrator.access.retrieve().access_key == f"key-{number}"
    assert orchestrator.count == 3


def test_each_object_has_its_url():
    orchestrator = Orchestrator()
    assert orchestrator.access.of("GET", "a").url == "GET a 1"
    assert orchestrator.access.of("PUT", "a").url == "PUT a 2"
    assert orchestrator.access.of("GET", "a").url == "GET a 1"
    orchestrator.now += 601.0
    assert orchestrator.access.of("GET", "a").url == "GET a 3"


def test_without_an_answer_the_former_keys_serve_to_their_end():
    orchestrator = Orchestrator()
    orchestrator.access.retrieve()
    orchestrator.error = Unavailable("away")
    orchestrator.now = 1601.0
    while orchestrator.now < 1900.0:
        assert orchestrator.access.retrieve().access_key == "key-1"
        orchestrator.now += 0.5
    assert 10 < orchestrator.count < 60, "it repeats the question, with growing waits"
    orchestrator.now = 1931.0
    with pytest.raises(Unavailable):
        orchestrator.access.retrieve()
    orchestrator.error = None
    assert orchestrator.access.retrieve().access_key == f"key-{orchestrator.count}"


def test_a_lease_that_is_lost_gets_no_new_keys():
    orchestrator = Orchestrator()
    orchestrator.access.retrieve()
    orchestrator.error = Fenced("a newer lease holds the work")
    orchestrator.now = 1601.0
    with pytest.raises(Fenced):
        orchestrator.access.retrieve()
