"""The states of a link to a worker, over a stream that the test scripts."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from podracer_core.errors import Exhausted, PodracerError, PreconditionFailed, Unavailable
from podracer_learner.workers import LinkState, Opened, WorkerLink
from podracer_learner.workers import link as link_module
from podracer_platform.attachments import FILES_MISSING
from podracer_platform.carriers import CarrierFailed

Script = deque[Any]


class Link(WorkerLink):
    """A link whose streams give the items and errors of the script; an empty script: nothing has
    arrived."""

    def play(self, script: Script, *items: Any) -> LinkState:
        script.extend(items)
        self.poll()
        return self.state


@pytest.fixture
def script() -> Script:
    return deque()


@pytest.fixture
def opened() -> Opened:
    return Opened(environment=None, received_at=0.0)  # type: ignore[arg-type]


@pytest.fixture
def delivery() -> SimpleNamespace:
    """Files on their way."""
    return SimpleNamespace(done=False, result=lambda: None)


@pytest.fixture
def link(script: Script, delivery: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Link:
    def take() -> Any:
        item = script.popleft() if script else None
        if isinstance(item, PodracerError):
            raise item
        return item

    def stream(*_: Any, inline_only: bool) -> SimpleNamespace:
        return SimpleNamespace(poll=take, close=lambda: None, inline_only=inline_only)

    monkeypatch.setattr(link_module, "CollectStream", stream)
    monkeypatch.setattr(link_module, "_REOPEN_S", (1e-9, 1e-9))
    options: Any = SimpleNamespace(
        opening=lambda *_: None,
        endpoint=None,
        arrived=None,
        check=lambda _: None,
        silence_s=60.0,
        with_environment_state=False,
        files=SimpleNamespace(deliver=lambda *_: delivery),
    )
    channel: Any = SimpleNamespace(
        **dict.fromkeys(("unary_unary", "stream_stream", "stream_unary"), lambda *_, **__: None)
    )
    return Link("unix:///worker", lambda: channel, (0, 4), options)


def test_a_lost_session_is_opened_again(link, script, opened):
    assert link.play(script, opened) is LinkState.OPEN
    assert link.play(script, Unavailable("it has ended")) is LinkState.LOST
    assert link.lost_since is not None
    assert link.play(script) is LinkState.OPENING
    assert link.lost_since is not None, "until it has answered"
    assert link.play(script, opened) is LinkState.OPEN
    assert link.lost_since is None


def test_a_worker_that_is_still_busy_with_its_last_session_is_not_lost(link, script):
    assert link.play(script, Exhausted("it has a session")) is LinkState.LOST
    assert link.lost_since is None


def test_a_refused_worker_is_not_asked_again(link, script, opened):
    assert (
        link.play(script, PreconditionFailed("another build", reason="BUILD_MISMATCH"))
        is LinkState.REFUSED
    )
    assert link.play(script, opened) is LinkState.REFUSED
    assert link.problem is not None
    assert link.problem.reason == "BUILD_MISMATCH"


def test_a_worker_gets_missing_files_before_it_is_asked_again(link, script, opened, delivery):
    def missing() -> PodracerError:
        return PreconditionFailed("files", reason=FILES_MISSING)

    assert link.play(script, missing()) is LinkState.DELIVERING
    assert link.play(script) is LinkState.DELIVERING
    delivery.done = True
    assert link.play(script, opened) is LinkState.OPEN
    for _ in range(3):
        assert link.play(script, missing()) is LinkState.DELIVERING
    assert link.play(script, missing()) is LinkState.REFUSED, "it loses them again and again"


def test_where_a_carrier_fails_rollouts_come_inline(link, script, opened):
    assert link.play(script, CarrierFailed("no shared memory")) is LinkState.OPENING
    assert link._stream is not None
    assert link._stream.inline_only  # type: ignore[attr-defined]
    assert link.play(script, CarrierFailed("again")) is LinkState.REFUSED


def test_a_closed_link_stays_closed(link, script, opened):
    link.close()
    link.close()
    assert link.play(script, opened) is LinkState.CLOSED
