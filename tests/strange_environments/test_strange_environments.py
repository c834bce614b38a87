"""Environments as people bring them (code/strange.py), each with the sentence that its user must
read.

All of them in the notebook; each kind once in a fused and once in a split pod, on services that
keep running."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import podracer
from podracer_client import Client
from podracer_core.errors import PodracerError
from podracer_core.in_process import Result
from tests.e2e.conftest import commands_in, start_up

CODE = Path(__file__).parent / "code"
sys.path.insert(0, str(CODE))
import strange  # noqa: E402 - it lies where a job's code does

MEMBERS, ENVS = 2, 4
OPTIONS: dict[str, Any] = {
    "members": MEMBERS, "envs_per_member": ENVS, "steps": 2_560, "episodes": 8, "seed": 1,
    "progress": False,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An environment, and what its user reads: in an error if it is refused, else in warnings.

    says      patterns; none: training succeeds without a word
    arguments of the constructor
    refused   whether training must not begin, or ends with an error
    options   of `train`, beside OPTIONS
    check     of the result
    job       whether the case stands for its kind in jobs, too
    """

    name: str
    environment: Any
    says: Sequence[str] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Result], object] = lambda result: None
    job: bool = False


def _whole(result: Result) -> None:
    """Only whole episodes have a return."""
    assert result.best is not None
    assert set(result.best.lengths) == {strange.STEPS}


def _tells_times(result: Result) -> None:
    """float32 has one number for all of them."""
    assert [
        int(result.policy(np.array([1_760_000_000.0 + seconds]))) for seconds in (0, 30, 70, 99)
    ] == [0, 0, 1, 1]
    assert "float32 could not tell its values apart" in result.treatment
    assert result.evaluate(8).mean > 15


def faulty(
    part: str,
    fault: str,
    when: str,
    says: str,
    *,
    refused: bool = False,
    job: bool = False,
    **options: Any,
) -> Case:
    arguments = {"part": part, "fault": fault, "when": when}
    if when == "evaluation":
        arguments["trained"] = MEMBERS * ENVS + 1  # and the one that the checker has made
    return Case(
        f"{part} {fault} {when}", strange.Faulty, [says], arguments, refused, options, _whole, job
    )


def form(name: str, says: str = "", *, refused: bool = False, job: bool = False) -> Case:
    return Case(
        f"form {name}", strange.Forms, [says] if says else [], {"form": name}, refused, job=job
    )


def odd(
    kind: str,
    name: str,
    says: str = "",
    *,
    refused: bool = False,
    job: bool = False,
    **options: Any,
) -> Case:
    said = [says] if says else []
    return Case(f"{kind} {name}", strange.Odd, said, {kind: name}, refused, options, job=job)


def _both(fault: str, value: str, *, job: bool = False) -> list[Case]:
    """Numbers that are not finite, in observations and rewards."""
    observation = rf"step \d+: observation\[\d\] was {value}"
    reward = rf"step \d+: the reward was {value}"
    return [
        faulty(
            "observation", fault, "reset", rf"Faulty.*reset: observation\[\d\] was {value}", job=job
        ),
        faulty("observation", fault, "step", rf"Faulty.*{observation}", job=job),
        faulty(
            "observation", fault, "always", "observation of reset has NaN or infinity", refused=True
        ),
        faulty("observation", fault, "evaluation", rf"Faulty.*{observation}"),
        faulty("reward", fault, "step", rf"Faulty.*{reward}"),
        faulty(
            "reward",
            fault,
            "always",
            "the reward of step must be a finite number",
            refused=True,
            job=job,
        ),
        faulty("reward", fault, "evaluation", rf"Faulty.*{reward}"),
    ]


def _lines() -> gymnasium.Env[Any, Any]:
    return strange.Forms("plain")


CASES = [
    Case("plain", strange.Plain, check=_whole, job=True),
    *_both("nan", "nan", job=True),
    *_both("infinite", "-inf"),
    faulty(
        "observation",
        "none",
        "reset",
        "Faulty.*reset: reset returned None in place of an observation",
    ),
    faulty(
        "observation",
        "none",
        "step",
        r"Faulty.*step \d+: step returned None in place of an observation",
    ),
    faulty(
        "observation",
        "none",
        "always",
        "observation of reset must be an array of numbers, not NoneType",
        refused=True,
    ),
    faulty("observation", "shape", "step", r"Faulty.*step \d+: .*shape \[3\]"),
    faulty(
        "observation",
        "shape",
        "always",
        r"observation of reset has the shape \[3\]; its space has \[2\]",
        refused=True,
        job=True,
    ),
    faulty(
        "observation",
        "text",
        "always",
        "observation of reset must be an array of numbers, not str",
        refused=True,
    ),
    faulty(
        "reward",
        "none",
        "step",
        r"Faulty.*step \d+: the reward of step must be a finite number, not NoneType",
    ),
    faulty(
        "reward",
        "none",
        "always",
        "the reward of step must be a finite number, not NoneType",
        refused=True,
    ),
    faulty(
        "reward",
        "text",
        "step",
        r"Faulty.*step \d+: the reward of step must be a finite number, not str '1.0'",
    ),
    faulty(
        "reward",
        "text",
        "always",
        "the reward of step must be a finite number, not str",
        refused=True,
    ),
    faulty("reward", "overflow", "step", r"Faulty.*step \d+: the reward was inf"),
    faulty("reward", "overflow", "always", "the reward of step must be", refused=True),
    faulty("flag", "none", "step", r"Faulty.*step \d+: terminated must be a bool, not NoneType"),
    faulty("flag", "none", "always", "terminated must be a bool, not NoneType", refused=True),
    faulty("code", "raise", "reset", "Faulty.*reset: ConnectionResetError: the simulator has gone"),
    faulty(
        "code",
        "raise",
        "step",
        r"Faulty.*step \d+: ConnectionResetError: the simulator has gone",
        job=True,
    ),
    faulty("code", "raise", "always", "the simulator has gone", refused=True, job=True),
    faulty("code", "raise", "evaluation", r"Faulty.*step \d+: ConnectionResetError"),
    faulty("code", "raise", "same", "the simulator has gone", refused=True),
    faulty("code", "exit", "step", "Faulty.*ended with status 7", job=True, isolation="process"),
    form(
        "four",
        r"step must return \(observation, reward, terminated, truncated, info\), not a tuple of 4",
        refused=True,
        job=True,
    ),
    form("reset_plain", r"reset must return \(observation, info\)", refused=True),
    form("reward_array", "reward"),
    form("reward_tensor", "reward"),
    form("flag_int", "terminated"),
    form("flag_array", "terminated", job=True),
    form("flag_none", "truncated must be a bool, not NoneType", refused=True),
    form("flag_text", "terminated must be a bool, not str", refused=True),
    form("tensor"),
    form("list"),
    form("row", r"observation of step has the shape \[1, 2\]", refused=True),
    form("a_little_outside", "outside the bounds"),
    form("far_outside", "outside the bounds", refused=True),
    Case("reset without seed", strange.ResetWithoutSeed, ["reset.*seed"], refused=True),
    Case("no spaces", strange.NoSpaces, ["observation_space"], refused=True),
    Case("no end", strange.Endless, ["no time limit.*ends episodes after 100 steps"], job=True),
    Case("ignores its seed", strange.IgnoresSeed, ["ignores its seed"], job=True),
    Case(
        "slow step",
        strange.Waits,
        arguments={"step_s": 0.02},
        options={"seconds": 4.0, "envs_per_member": None},
    ),
    Case(
        "slow start", strange.Waits, arguments={"start_s": 0.05}, options={"envs_per_member": None}
    ),
    Case("one a process", strange.OnlyOne, ["one process"], job=True),
    Case("shared state", strange.Shared, ["share"], job=True),
    Case("a number for each", strange.HasPort, job=True),
    Case("bound 1e300", strange.Steers, arguments={"bound": 1e300}),
    Case("bound 1e38", strange.Steers, arguments={"bound": 3.4028234e38}),
    Case("bound 1e6", strange.Steers, ["1e.?06|1,?000,?000"], {"bound": 1e6}),
    Case(
        "seconds since 1970",
        strange.Clock,
        options={"steps": 5_000},
        check=_tells_times,
        job=True,
    ),
    odd("observation", "scalar", job=True),
    odd("observation", "empty"),
    odd("observation", "empty_dict", job=True),
    odd("observation", "text", "Text", refused=True),
    odd("observation", "dict_with_text", "mission", job=True),
    odd("observation", "sequence", "Sequence", refused=True),
    odd("observation", "graph", "Graph", refused=True),
    odd("observation", "one_of", "OneOf", refused=True),
    odd("observation", "camera_and_speed"),
    odd(
        "observation", "million", "GiB|MiB", refused=True, job=True, envs_per_member=None, members=8
    ),
    odd("observation", "million_places", "GiB|MiB", refused=True, envs_per_member=None, members=8),
    odd("action", "tuple", "Tuple", refused=True, job=True),
    odd("action", "dict", "Dict", refused=True),
    odd("action", "integers", "MultiDiscrete", refused=True),
    odd("action", "table", "MultiDiscrete", refused=True),
    odd("action", "empty", "empty|no numbers", refused=True),
    odd("action", "text", "Text", refused=True),
    odd("action", "start"),
    Case("an instance", strange.Plain(), ["not an instance of Plain"], refused=True),
    Case("a function", _lines),
    Case(
        "a vector environment",
        lambda: gymnasium.vector.SyncVectorEnv([strange.Plain]),
        ["SyncVectorEnv"],
        refused=True,
    ),
    Case("not an environment", object, ["returned object, not a gymnasium.Env"], refused=True),
    Case("an unknown id", "CartPoll-v1", ["did you mean CartPole-v1"], refused=True, job=True),
    Case("an id of a package", "ALE/Breakout-v5", ["pip install ale-py"], refused=True, job=True),
    Case("an impossible target", "CartPole-v1", ["500"], options={"target": 600.0}),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case.job else pytest.mark.thorough, id=case.name)
        for case in CASES
    ],
)
def test_in_the_notebook(case):
    strange.Faulty.made = 0
    options = OPTIONS | case.options
    if "seconds" in case.options:
        del options["steps"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if case.refused:
            with pytest.raises((PodracerError, ConnectionResetError)) as error:
                podracer.train(case.environment, environment_arguments=case.arguments, **options)
            said = [str(error.value), *getattr(error.value, "__notes__", ())]
        else:
            result = podracer.train(
                case.environment, environment_arguments=case.arguments, **options
            )
            assert result.best is not None
            case.check(result)
            # of other tests
            said = [str(each.message) for each in caught if each.category is not ResourceWarning]
            assert bool(said) == bool(case.says), said
    for pattern in case.says:
        assert any(re.search(pattern, text, re.DOTALL) for text in said), said


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of services that all jobs here use."""
    folder = tmp_path_factory.mktemp("strange")
    with commands_in(folder, PODRACER_ALLOW_USER_CODE="true") as start:
        start_up(start, folder)
        with Client.connect(folder=folder / "runs") as connected:
            yield connected


@pytest.mark.thorough
@pytest.mark.xdist_group("e2e")
@pytest.mark.parametrize("case", [case for case in CASES if case.job], ids=lambda case: case.name)
@pytest.mark.parametrize("layout", ["fused", "split"])  # it changes once, and the pods with it
def test_in_a_job(case, layout, client, tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps(_job(case, layout)))
    try:
        job = client.submit(tmp_path / "job.yaml").wait()
    except PodracerError as error:  # an id is refused at once
        assert case.refused, error
        said = [str(error)]
    else:
        events = list(client.events(job.name))
        said = [event.message for event in events]
        if case.refused:
            assert job.state == "FAILED", said
        else:
            assert job.state == "SUCCEEDED", said
            assert (candidates := job.leaderboard().candidates)
            assert case.environment is not strange.Clock or candidates[0].evaluation.mean > 15
    for pattern in case.says:
        assert any(re.search(pattern, text, re.DOTALL) for text in said), said


def _job(case: Case, layout: str) -> dict[str, Any]:
    if isinstance(case.environment, str):
        environment: dict[str, Any] = {"id": case.environment}
    else:
        name = f"strange:{case.environment.__name__}"
        environment = {"entry_point": name, "code": str(CODE), "kwargs": case.arguments}
    if "isolation" in case.options:
        environment["isolation"] = case.options["isolation"]
    members = case.options.get("members", MEMBERS)
    steps = case.options.get("steps", OPTIONS["steps"])
    pod = {"count": 1, "members": members, "layout": layout}
    if case.options.get("envs_per_member", ENVS) is not None:
        pod["envs_per_member"] = ENVS
    return {
        "name": re.sub(r"[\W_]+", "-", f"{case.name}-{layout}"),
        "environment": environment,
        "objective": {"max_env_steps": steps},
        "search": {"algorithms": ["ppo"]},
        "evolution": {
            "population": members,
            "leaderboard_size": 2,
            "round": {"env_steps": steps // members},
        },
        "pod": pod,
        "evaluation": {"episodes": OPTIONS["episodes"]},
    }
