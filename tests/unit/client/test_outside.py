"""Calls of other people's packages: a deadline, one clear message, and no secret in it."""

from __future__ import annotations

import sys
import threading

import pytest

from podracer_client.outside import require, within
from podracer_core.errors import DeadlineExpired, InvalidInput, Unavailable
from support.errors import raises


def test_a_call_ends_with_its_deadline():
    release = threading.Event()
    with pytest.raises(DeadlineExpired, match="answer within 0"):
        within(0.01, "hub", release.wait)
    release.set()
    assert within(60.0, "hub", lambda: 3) == 3


@pytest.mark.parametrize("failure", [RuntimeError, TimeoutError])
def test_a_failure_tells_no_secret(failure, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "k3y")

    def call() -> None:
        raise failure("https://ann:hunter2@there/x refused k3y\nand more")

    with pytest.raises(Unavailable) as told:
        within(60.0, "wandb", call)
    assert told.value.message == f"wandb: {failure.__name__}: https://…@there/x refused …"


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with raises(InvalidInput, "PACKAGE_MISSING"):
        require("wandb", "wandb")
