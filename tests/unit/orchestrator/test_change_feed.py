"""Waiting for a topic misses nothing."""

from __future__ import annotations

import asyncio

from podracer_orchestrator.transactions import ChangeFeed


async def test_a_change_between_looking_and_waiting_is_not_missed():
    feed = ChangeFeed()
    version = feed.version("a")
    feed.notify(["a"])
    assert await feed.wait("a", version, 10.0)


async def test_only_the_own_topic_wakes_and_everybody_who_waits_for_it():
    feed = ChangeFeed()
    waits = [
        asyncio.create_task(feed.wait(topic, feed.version(topic), 0.3)) for topic in ("a", "a", "b")
    ]
    await asyncio.sleep(0)
    feed.notify(["a"])
    assert await asyncio.gather(*waits) == [True, True, False]


async def test_a_cancelled_wait_leaves_nothing_behind():
    feed = ChangeFeed()
    wait = asyncio.create_task(feed.wait("a", feed.version("a"), 10.0))
    await asyncio.sleep(0)
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    feed.notify(["a"])
    assert not await feed.wait("a", feed.version("a"), 0.01)


async def test_a_cancellation_that_comes_together_with_the_change_is_not_lost():
    feed = ChangeFeed()
    wait = asyncio.create_task(feed.wait("a", feed.version("a"), 10.0))
    await asyncio.sleep(0)
    feed.notify(["a"])
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert wait.cancelled()
