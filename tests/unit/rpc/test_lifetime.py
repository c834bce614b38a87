"""When a process ends: the parts that need no second process (the rest:
tests/integration/rpc/test_processes.py)."""

from __future__ import annotations

import os
import signal

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.service import lifetime


def test_nothing_happens_unasked(monkeypatch):
    monkeypatch.delenv(lifetime.PARENT_VARIABLE, raising=False)
    lifetime.exit_with_parent_if_asked()


def test_the_variable_is_not_passed_on(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(lifetime, "exit_with_parent", asked.append)
    monkeypatch.setenv(lifetime.PARENT_VARIABLE, "123")
    lifetime.exit_with_parent_if_asked()
    assert asked == [123]
    assert lifetime.PARENT_VARIABLE not in os.environ


@pytest.mark.parametrize("text", ["me", "-1", "1.5"])
def test_no_pid(text, monkeypatch):
    monkeypatch.setenv(lifetime.PARENT_VARIABLE, text)
    with pytest.raises(InvalidInput, match=repr(text)):
        lifetime.exit_with_parent_if_asked()


def test_watching_where_the_kernel_does_not(monkeypatch):
    parents = iter([7, 7, 1])
    exits: list[int] = []
    monkeypatch.setattr(lifetime.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(lifetime.os, "_exit", exits.append)
    monkeypatch.setattr(lifetime.time, "sleep", lambda seconds: None)
    lifetime._watch(7)
    assert exits == [1]


def test_the_first_signal_asks_and_the_second_ends():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = lifetime.stop_event_on_signals()
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.wait(30.0)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
