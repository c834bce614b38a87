"""What others ask of the round, answered between two updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from podracer.common.v1 import agent_pb2
from podracer_core.errors import NotFound, PreconditionFailed
from podracer_learner.round import Commands


class FakeRound:
    agents = ("a", "b", "c")

    def __init__(self) -> None:
        self.thread = ""

    def policy(self, members: Sequence[int]) -> tuple[int, dict[str, torch.Tensor]]:
        self.thread = threading.current_thread().name
        return 5, {"w": torch.tensor(list(members))}

    def checkpoint_now(self, members: Sequence[int]) -> list[agent_pb2.CheckpointReference]:
        return [agent_pb2.CheckpointReference(prefix=f"{member}/") for member in members]


def served(commands: Commands, question: Callable[[], Any]) -> Any:
    """Ask from another thread while this one goes through its loop."""
    with ThreadPoolExecutor(1) as pool:
        future: Future[Any] = pool.submit(question)
        while not future.done():
            commands.run_pending()
        return future.result()


def test_the_main_thread_answers():
    commands, current = Commands(), FakeRound()
    with commands.serving(current):
        agents, version, tensors = served(commands, lambda: commands.fetch_policy("b"))
        assert (agents, version, tensors["w"].tolist()) == (["b"], 5, [1])
        assert current.thread == threading.current_thread().name
        assert served(commands, lambda: commands.fetch_policy(""))[0] == ["a", "b", "c"]
        references = served(commands, lambda: commands.checkpoint(["c", "a"]))
        assert [reference.prefix for reference in references] == ["2/", "0/"]


def test_strangers_are_not_found():
    commands = Commands()
    with commands.serving(FakeRound()), pytest.raises(NotFound, match="zz"):
        served(commands, lambda: commands.checkpoint(["zz"]))


def test_between_rounds_questions_are_refused():
    commands = Commands()
    with pytest.raises(PreconditionFailed):
        commands.fetch_policy("")


def test_a_question_that_comes_as_the_round_ends_is_refused():
    commands = Commands()
    asked = threading.Event()

    def question() -> Any:
        asked.set()
        return commands.fetch_policy("a")

    with ThreadPoolExecutor(1) as pool:
        with commands.serving(FakeRound()):
            future = pool.submit(question)
            asked.wait(5)
        with pytest.raises(PreconditionFailed):
            future.result(5)
