"""Work that other threads ask of the main thread."""

from __future__ import annotations

import threading

import pytest

from podracer_core.errors import Unavailable
from podracer_platform.rpc import WorkQueue


def in_background(work: WorkQueue, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=work.run, args=(stop,))
    thread.start()
    return thread


def test_tasks_run_in_order_in_the_thread_that_runs_them():
    work, stop = WorkQueue(), threading.Event()
    thread = in_background(work, stop)
    names = [work.submit(lambda: threading.current_thread().name).result(5) for _ in range(3)]
    assert names == [thread.name] * 3
    seen: list[int] = []
    futures = [work.submit(lambda number=number: seen.append(number)) for number in range(20)]  # type: ignore[misc]
    for future in futures:
        future.result(5)
    assert seen == list(range(20))
    stop.set()
    thread.join(5)


def test_an_error_goes_to_who_asked_and_the_queue_goes_on():
    work, stop = WorkQueue(), threading.Event()
    thread = in_background(work, stop)
    with pytest.raises(ZeroDivisionError):
        work.submit(lambda: 1 // 0).result(5)
    assert work.submit(lambda: 7).result(5) == 7
    stop.set()
    thread.join(5)


def test_after_the_end_everything_is_refused():
    work, stop = WorkQueue(), threading.Event()
    stop.set()
    waiting = work.submit(lambda: 1)
    work.run(stop)
    with pytest.raises(Unavailable):
        waiting.result(1)
    with pytest.raises(Unavailable):
        work.submit(lambda: 1).result(1)


def test_a_loop_of_ones_own_does_what_waits():
    work = WorkQueue()
    future = work.submit(lambda: 5)
    assert not future.done()
    work.run_pending()
    assert future.result(0) == 5
    work.run_pending()


def test_a_cancelled_task_is_not_run():
    work = WorkQueue()
    ran: list[int] = []
    future = work.submit(lambda: ran.append(1))
    assert future.cancel()
    work.run_pending()
    assert not ran
