"""A task in a thread of its own gives its caller whatever comes of it."""

from __future__ import annotations

import sys
import threading

import pytest

from podracer_learner.background import BackgroundTask


def test_the_result_and_every_kind_of_end_come_to_the_caller():
    assert BackgroundTask(lambda: 3, "sum").result() == 3
    with pytest.raises(ZeroDivisionError):
        BackgroundTask(lambda: 1 // 0, "mistake").result()
    with pytest.raises(SystemExit):  # else its caller would wait for ever
        BackgroundTask(sys.exit, "exit").result()


def test_check_gives_up_while_the_task_goes_on():
    end = threading.Event()

    def check() -> None:
        raise TimeoutError

    task = BackgroundTask(end.wait, "long")
    with pytest.raises(TimeoutError):
        task.result(check)
    end.set()
    assert task.result()
