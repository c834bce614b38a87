"""What users' code may do to its own process, and to no other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from podracer_core.catalogue import EnvironmentSpec
from podracer_core.environments.processes import PreprocessVecEnv
from podracer_core.errors import InvalidInput, UserCodeFailed
from support.processes import kill_user_code, wait_until

FOLDER = str(Path(__file__).parent)
NOTHING = torch.zeros(2, dtype=torch.int64)
Hostile = Callable[..., PreprocessVecEnv]


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    """Two environments in one process; whatever they do, no process is left and no descriptor."""
    descriptors = psutil.Process().num_fds()
    made: list[PreprocessVecEnv] = []

    def start(what: str, where: str = "step", **options: Any) -> PreprocessVecEnv:
        kwargs = {"what": what, "where": where, "flag": str(tmp_path / "done")}
        spec = EnvironmentSpec(
            entry_point="user_environments:Hostile", code_path=FOLDER, kwargs=kwargs
        )
        made.append(PreprocessVecEnv(spec, 2, processes=1, **options))
        return made[-1]

    yield start
    while made:
        processes = [psutil.Process(pid) for pid in made[-1].process_ids]
        made.pop().close()
        assert not any(process.is_running() for process in processes)
    gc.collect()  # the exceptions of a failed step hold on to its frame
    assert psutil.Process().num_fds() <= descriptors


@pytest.mark.parametrize(
    "what",
    [
        "exit",
        "segfault",
        "loop",
        "write to every descriptor",
        "close every descriptor",
        "fork and exit",
    ],
)
def test_a_process_that_ruins_itself_is_replaced(hostile, what):
    environment = hostile(what, step_timeout_s=4.0)
    environment.reset(torch.arange(2))
    victim = environment.process_ids[0]
    assert not environment.step(NOTHING).valid.any()
    assert not psutil.pid_exists(victim)
    assert environment.process_ids[0] != victim
    step = environment.step(NOTHING)
    assert step.valid.all()
    assert step.observation[:, 1].tolist() == [1, 1]


def test_a_reset_that_loops_is_killed_too(hostile):
    environment = hostile("loop", "reset", step_timeout_s=0.5)
    assert environment.reset(torch.arange(2))[:, 1].tolist() == [0, 0]
    assert environment.step(NOTHING).valid.all()


def test_a_construction_that_loops_is_killed_too(hostile):
    with pytest.raises(UserCodeFailed, match="user_environments:Hostile"):
        hostile("loop", "construction", start_timeout_s=1.5)


@pytest.mark.parametrize(
    ("what", "where"), [("exit", "construction"), ("segfault", "construction")]
)
def test_a_construction_that_ends_the_process(hostile, what, where):
    with pytest.raises(UserCodeFailed, match="'open'"):
        hostile(what, where)


def test_an_exception_without_words(hostile):
    with pytest.raises(UserCodeFailed, match="_Unspeakable: <exception") as caught:
        hostile("raise", "construction")
    assert "in _misbehave" in caught.value.user_traceback


def test_an_exception_in_close_is_printed(hostile, capfd):
    environment = hostile("raise", "close")
    environment.reset(torch.arange(2))
    environment.close()
    assert "_Unspeakable" in capfd.readouterr().err


def test_megabytes_of_print_do_no_harm(hostile, capfd):
    environment = hostile("print megabytes")
    environment.reset(torch.arange(2))
    assert environment.step(NOTHING).valid.all()
    assert len(capfd.readouterr().err) > 2_000_000


@pytest.mark.parametrize("what", ["start a process and a thread", "fork on and on"])
def test_what_it_has_started_ends_with_it(hostile, tmp_path, what):
    environment = hostile(what)
    environment.reset(torch.arange(2))
    assert environment.step(NOTHING).valid.all()
    started = [psutil.Process(int(pid)) for pid in (tmp_path / "done").read_text().split()]
    assert len(started) in (1, 20)
    environment.close()
    wait_until(
        lambda: not any(each.is_running() for each in started), 60, "the end of what it has started"
    )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("take all memory", "construction raised MemoryError"),
        (
            "be killed",
            "killed by SIGKILL in 'open': the kernel does that to a process for which there is no "
            "memory",
        ),
    ],
)
def test_memory_that_ends_is_told_as_a_fault_of_the_environment(hostile, what, says):
    with pytest.raises(UserCodeFailed, match=f"user_environments:Hostile: .*{says}"):
        hostile(what, "construction")


def test_huge_observations():
    spec = EnvironmentSpec(entry_point="user_environments:HugeImages", code_path=FOLDER)
    environment = PreprocessVecEnv(spec, 3, processes=2)
    try:
        environment.reset(torch.arange(3))
        step = environment.step(torch.zeros(3, dtype=torch.int64))
        assert (step.final_observation == 1).all()
    finally:
        environment.close()


def test_the_step_of_old_is_named():
    spec = EnvironmentSpec(entry_point="user_environments:OldStep", code_path=FOLDER)
    environment = PreprocessVecEnv(spec, 1)
    environment.reset(torch.arange(1))
    with pytest.raises(InvalidInput, match=r"\(observation, reward"):
        environment.step(NOTHING[:1])


def test_opening_and_closing_leaves_nothing_behind():
    """Not even where a process is killed in between."""

    def held() -> tuple[int, int]:
        process = psutil.Process()
        return process.num_fds(), len(process.children(recursive=True))

    spec = EnvironmentSpec(entry_point="user_environments:NeverEnds", code_path=FOLDER)
    before = held()
    for kill in (False, True, False):
        environment = PreprocessVecEnv(spec, 2, processes=2)
        environment.reset(torch.arange(2))
        if kill:
            kill_user_code(environment.process_ids[0])
        environment.step(NOTHING)
        environment.close()
        del environment  # the mapping keeps a descriptor for as long as its tensors live
        assert held() == before
