"""Users' environments written in torch: in processes of their own with the same numbers as here,
and found out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from podracer_core.catalogue import BoxSpace, EnvironmentSpec
from podracer_core.environments import (
    State,
    Step,
    TorchEnvironment,
    VecEnvironment,
    inspect_environment,
)
from podracer_core.environments.processes import (
    BatchedRows,
    PreprocessVecEnv,
    check_attributes,
    create_memory,
    inspect_batched,
    size_memory,
)
from podracer_core.errors import InvalidInput, UserCodeFailed
from podracer_core.random_numbers import uniform
from support.processes import kill_user_code
from support.user_torch_environments import Cards, Walk
from support.vec_environments import assert_same as assert_same_step
from support.vec_environments import run

TESTS = str(Path(__file__).parents[2])
Start = Callable[..., PreprocessVecEnv]


def user_spec(name: str, max_episode_steps: int | None = None, **kwargs: Any) -> EnvironmentSpec:
    entry_point = f"support.user_torch_environments:{name}"
    return EnvironmentSpec(
        entry_point=entry_point, code_path=TESTS, kwargs=kwargs, max_episode_steps=max_episode_steps
    )


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[PreprocessVecEnv] = []

    def _start(spec: EnvironmentSpec, num_envs: int, **options: Any) -> PreprocessVecEnv:
        made.append(PreprocessVecEnv(spec, num_envs, **options))
        return made[-1]

    yield _start
    for environment in made:
        environment.close()


def actions(steps: int, count: int, seed: int = 0) -> Tensor:
    return torch.rand(steps, count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def assert_same(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same_step(one, other, f"step {number}")


def test_the_same_numbers_as_in_this_process_and_a_state_to_go_back_to(start):
    """Whatever the number of processes: the state of two goes into one."""
    here = Walk(5)
    one = start(user_spec("Walk"), 5, processes=1)
    two = start(user_spec("Walk"), 5, processes=2)
    assert len(two.process_ids) == 2
    assert two.max_episode_steps == 9
    assert two.observation_space == here.observation_space
    seeds, taken = torch.tensor([3, 2**40, -1, 0, 7]), actions(60, 5)
    first = here.reset(seeds)
    assert torch.equal(two.reset(seeds), first)
    expected = run(here, taken)
    assert_same(run(two, taken[:30]), expected[:30])
    saved = two.state()
    assert saved["episode"].min() > 0
    assert all(value.shape[0] == 5 for value in saved.values())
    assert torch.equal(one.load_state(saved), two._step.observation)
    assert_same(run(one, taken[30:]), expected[30:])
    run(two, taken[30:])
    two.load_state(saved)
    assert_same(run(two, taken[30:]), expected[30:])


def test_what_the_class_says_of_itself_is_passed_on(start):
    walk = start(user_spec("Walk", max_episode_steps=3, trouble="back-test"), 2, processes=1)
    assert walk.deterministic_evaluation
    assert walk.max_episode_steps == 3
    walk.reset(torch.arange(2))
    ends = [bool(step["truncated"].all()) for step in run(walk, torch.zeros(6, 2, 2))]
    assert ends == [False, False, True] * 2
    with pytest.raises(InvalidInput, match="a batched environment"):
        BatchedRows(Walk, 1, {}, None).frame()


@pytest.mark.thorough
def test_one_without_our_frame_that_ignores_out(start):
    environment = start(user_spec("Cards"), 4, processes=2)
    assert environment.has_action_mask
    assert environment.max_episode_steps == 4
    here = Cards(4)
    seeds = torch.tensor([0, 1, 2, 7])
    assert torch.equal(environment.reset(seeds), here.reset(seeds))
    for _ in range(9):
        mask = environment.action_mask
        assert torch.equal(mask, here.action_mask)
        action = mask.long().argmax(1)
        step, expected = environment.step(action), here.step(action)
        for name in ("observation", "final_observation", "truncated", "valid", "action_mask"):
            assert torch.equal(getattr(step, name), getattr(expected, name)), name
    assert environment.state()["episode"].tolist() == [2, 2, 2, 3]


def test_a_killed_process_is_replaced(start):
    environment = start(user_spec("Walk"), 4, processes=2)
    first = environment.reset(torch.arange(4)).clone()
    kill_user_code(environment.process_ids[1])
    step = environment.step(torch.zeros(4, 2))
    assert step.valid.tolist() == [True, True, False, False]
    assert step.truncated.tolist() == [False, False, True, True]
    assert torch.equal(step.final_observation, first), "nothing moved"
    assert (step.observation[2:] != first[2:]).all(), "another episode"
    assert environment.step(torch.zeros(4, 2)).valid.all()


def test_worlds_that_break_are_started_anew(start):
    environment = start(user_spec("Walk", trouble="NaN"), 3, processes=1)
    environment.reset(torch.arange(3))
    step = environment.step(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    assert step.valid.tolist() == [True, False, True]
    assert step.observation.isfinite().all()
    assert environment.state()["episode"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("kind", "kwargs", "complaint"),
    [
        (
            Walk,
            {"trouble": "lying about NaN"},
            "NaN or infinity in row 1; a TorchEnvironment with can_diverge",
        ),
        (Cards, {"trouble": "NaN"}, "NaN or infinity in row 1"),
        (Cards, {"trouble": "tuple"}, "step must return a Step, not tuple"),
        (Cards, {"trouble": "shape"}, r"reward of step must be a tensor \[2\], not \[1\]"),
        (
            Cards,
            {"trouble": "state"},
            r"state\(\)\['count'\] must be a tensor whose first axis .* not \[\]",
        ),
        (
            Cards,
            {"trouble": "forgets super"},
            "Cards has no num_envs; does its constructor call super",
        ),
        (
            Walk,
            {"speed": 3},
            r"Walk\(num_envs, device=…\) does not take these arguments: .* 'speed'",
        ),
        (Cards, {"max_episode_steps": 3}, "unexpected keyword argument 'max_episode_steps'"),
    ],
)
def test_what_cannot_be_right_is_refused(kind, kwargs, complaint):
    """As the process does it, without one."""
    memory = create_memory()
    try:
        with pytest.raises(InvalidInput, match=complaint):
            rows = BatchedRows(kind, 2, kwargs, None)
            size_memory(memory, 2, rows.observation_space, rows.action_space, rows.mask_size())
            rows.map(memory, 2, 0, rows.mask_size())
            rows.start()
            rows.arrays.action[:] = (
                [[0, 0], [1, 0]] if kind is Walk else rows.arrays.action_mask.argmax(1)
            )
            rows.step()
            rows.state()
    finally:
        os.close(memory)


@pytest.mark.parametrize(
    ("trouble", "numbers"), [("lying about NaN", True), ("raise when right", False)]
)
def test_an_instance_that_breaks_is_made_anew(start, trouble, numbers):
    """All its rows go on with their next episodes, if it has worked before."""
    environment = start(user_spec("Walk", trouble=trouble), 3, processes=1)
    environment.reset(torch.arange(3))
    still, right = torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert environment.step(still).valid.all()
    step = environment.step(right)
    assert not step.valid.any()
    assert step.truncated.all()
    assert step.final_observation.isfinite().all()
    first, *others = environment.take_breaks()
    assert [first.numbers, *(each.row for each in others)] == [numbers, 1, 2]
    assert first.text.startswith(
        "step 2: step gave NaN" if numbers else "step 2: RuntimeError: the maze has no exit"
    )
    assert environment.step(still).valid.all()
    assert environment.state()["episode"].tolist() == [1, 1, 1]
    environment.step(right)
    with pytest.raises((InvalidInput, UserCodeFailed)) if not numbers else nullcontext():
        for _ in range(3):
            environment.step(right)


@pytest.mark.thorough
def test_an_exception_arrives_with_its_own_traceback(start):
    with pytest.raises(UserCodeFailed, match="construction raised"):
        start(user_spec("Walk", trouble="construction"), 2, processes=1)
    environment = start(user_spec("Walk", trouble="raise"), 2, processes=1)
    environment.reset(torch.arange(2))
    with pytest.raises(UserCodeFailed, match="raised RuntimeError") as caught:
        environment.step(torch.zeros(2, 2))
    lines = caught.value.user_traceback.splitlines()
    assert "user_torch_environments.py" in lines[1], "our own frames are left out"
    assert "torch_environment.py" not in "".join(lines[2:])


def test_an_inspection_in_a_process_of_its_own():
    found = inspect_environment(user_spec("Walk"))
    assert found.observation_space == BoxSpace(-10.0, 10.0, (2,))
    assert found.max_episode_steps == 9
    assert (found.deterministic_evaluation, found.preparation) == (False, "")
    found = inspect_environment(user_spec("Walk", trouble="back-test"))
    assert (found.deterministic_evaluation, found.preparation) == (True, "the map is a back-test")
    with pytest.raises(UserCodeFailed, match="raised RuntimeError"):
        inspect_environment(user_spec("Walk", trouble="raise"))


class Good(TorchEnvironment):
    """The least that an environment needs; the tests break it in one place each."""

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        observation = gymnasium.spaces.Box(-5.0, 5.0, (2,), np.float32)
        super().__init__(num_envs, device, observation, gymnasium.spaces.Discrete(3, start=4), None)

    def initial_state(self, key: Tensor) -> State:
        return {"observation": uniform(key, torch.arange(2)[:, None]), "age": torch.zeros_like(key)}

    def dynamics(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        assert action.min() >= 0
        assert action.max() <= 2
        return {**state, "age": state["age"] + 1}, action.float(), state["age"] > 3


def _lie(name: str, function: Callable[..., Any]) -> type[TorchEnvironment]:
    return type("Liar", (Good,), {name: function})


def _space(space: gymnasium.Space[Any]) -> Callable[..., None]:
    def construct(self: TorchEnvironment, num_envs: int, device: str = "cpu") -> None:
        TorchEnvironment.__init__(self, num_envs, device, space, gymnasium.spaces.Discrete(3), None)

    return construct


def _result(**changes: Any) -> Callable[..., Any]:
    def dynamics(self: Any, state: State, action: Tensor) -> Any:
        after, reward, terminated = Good.dynamics(self, state, action)
        parts = {"state": after, "reward": reward, "terminated": terminated}
        return tuple(
            (parts | {name: change(parts[name]) for name, change in changes.items()}).values()
        )

    return dynamics


def _step(**changes: Callable[[Tensor], Any]) -> Callable[..., Any]:
    def step(self: Any, action: Tensor, out: Step | None = None) -> Any:
        step = Good.step(self, action, out)
        for name, change in changes.items():
            object.__setattr__(step, name, change(getattr(step, name)))
        return step

    return step


def _unkeyed(self: Any, key: Tensor) -> State:
    return {"observation": torch.rand(2, key.numel()), "age": torch.zeros_like(key)}


LIARS = [
    ("__init__", _space(gymnasium.spaces.Discrete(3)), r"must be a Box, not Discrete\(3\)"),
    (
        "__init__",
        _space(gymnasium.spaces.Box(-5, 5, (2,), np.float64)),
        "must be float32 or uint8, not float64",
    ),
    (
        "__init__",
        _space(gymnasium.spaces.Box(0.5, 0.6, (2,))),
        r"the observation is .*, outside the bounds \[0.5",
    ),
    (
        "initial_state",
        lambda _, key: torch.zeros(2, key.numel()),
        "must give the state as a dict of tensors, not as t",
    ),
    (
        "initial_state",
        lambda _, key: {"observation": torch.zeros(key.numel(), 2)},
        r"initial_state gave 'observation' as \[3, 2\]; the last axis .*: \[…, 3\] for 3 "
        r"environments",
    ),
    (
        "initial_state",
        _unkeyed,
        "initial_state gave another 'observation' for the same keys: draw random numbers from",
    ),
    (
        "initial_state",
        lambda _, key: {"a": key, "b": key},
        "Liar must define observe, or call one of a, b observation",
    ),
    ("observe", lambda *_: None, "the observation has NaN or infinity"),
    (
        "dynamics",
        lambda *_: None,
        r"dynamics must return \(state, reward, terminated\), not a NoneType",
    ),
    (
        "dynamics",
        _result(state=lambda state: {"age": state["age"]}),
        "dynamics returned nothing as 'observation'",
    ),
    (
        "dynamics",
        _result(state=lambda state: {**state, "age": state["age"].float()}),
        r"dynamics returned torch.float32 \[3\] as 'age' of the state, which initial_state gave as "
        r"torch.int64 \[3\]",
    ),
    (
        "dynamics",
        _result(reward=lambda reward: reward[:, None]),
        r"the reward must be torch.float32 \[3\], not .*, 1\]",
    ),
    ("dynamics", _result(reward=lambda _: 1.0), "the reward must be a tensor, not a float"),
    (
        "dynamics",
        _result(terminated=lambda flags: flags.float()),
        r"terminated must be torch.bool \[3\], not torch",
    ),
    (
        "dynamics",
        _result(reward=lambda reward: reward / 0),
        "step broke world 0 of 3: NaN or infinity, or valid",
    ),
    ("step", lambda *_: None, "step must return a Step, not a NoneType"),
    (
        "step",
        _step(observation=lambda value: value + 1),
        "where no episode ends, observation and final_observation",
    ),
    (
        "step",
        _step(reward=lambda reward: reward[None]),
        r"reward of step must be torch.float32 \[3\], not .* \[1, 3\]",
    ),
    (
        "reset",
        lambda self, _: Good.reset(self, torch.randint(2**40, (3,))),
        "reset gave other observations for the",
    ),
    ("reset", lambda *_: None, "the observation of reset must be a tensor, not a NoneType"),
]


@pytest.mark.parametrize(("name", "function", "complaint"), LIARS)
def test_lies_are_found_out(name, function, complaint):
    liar = _lie(name, function)
    with pytest.raises(InvalidInput, match=complaint):
        _inspect(liar)


def test_good_ones_pass():
    _inspect(Good)
    _inspect(Walk)
    _inspect(Cards)


def _inspect(kind: Callable[..., VecEnvironment]) -> None:
    environment = kind(3, device="cpu")
    check_attributes(environment, 3)
    inspect_batched(environment, 10, announce=lambda _: None)
