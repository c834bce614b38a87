"""`podracer environments`: all of them, or one with its arguments and a job, without a server and
without torch."""

from __future__ import annotations

import json
import math
import re
import sys

import gymnasium
import pytest

from podracer_client.command import catalogue as command
from podracer_client.command import exit_code
from podracer_core.catalogue import (
    ENVIRONMENT_GROUP,
    ArgumentInfo,
    BoxSpace,
    DiscreteSpace,
    EnvironmentInfo,
    find_environment,
    known_environments,
)
from podracer_core.errors import InvalidInput
from podracer_platform.jobs import parse_job
from support.errors import raises
from support.installed import install

__all__ = ["install"]


def test_a_terminal_gets_a_table(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    command.environments()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 120
    for name in known_environments():
        assert any(line.startswith(f"{name} ") for line in lines)


@pytest.mark.parametrize("environment_id", known_environments())
def test_the_job_can_be_submitted(environment_id, tmp_path):
    info = find_environment(environment_id)
    required = [each for each in info.arguments if each.required]
    for file in (str(each.example) for each in required if each.is_file):
        (tmp_path / file).touch()
    job = parse_job(command.job_text(info), folder=tmp_path)
    assert job.environment.id == environment_id
    assert set(job.environment.kwargs) == {each.name for each in required if not each.is_file}
    assert set(job.data) == {each.name for each in required if each.is_file}


def test_what_has_to_be_given_is_in_the_job(capsys):
    info = EnvironmentInfo(
        *("my_maze:Big-v3", "a maze", "installed", ("cpu",)),
        BoxSpace(tuple(float(-n) for n in range(20)), 1.0, (20,)),
        DiscreteSpace(2),
        arguments=(
            ArgumentInfo("table", "where the map is", required=True, example="./maps/it's.csv"),
            ArgumentInfo("sizes", "of the rooms", required=True, example=[3, 4]),
            ArgumentInfo("name", "what to call it", ""),
            ArgumentInfo("seed", "of the walls", None),
            ArgumentInfo("doors", "how many each", (1, math.inf)),
        ),
    )
    job = parse_job(command.job_text(info))
    assert (job.name, job.environment.id) == ("my-maze-big", info.id)
    assert job.environment.kwargs == {"table": "./maps/it's.csv", "sizes": [3, 4]}
    command._show_environment(info)
    shown = capsys.readouterr().out
    assert (
        "observation  Box(20,) float32, each number with bounds of its own, from -19 to 1\n"
        in shown
    )
    assert "time limit   none\n" in shown
    for line in ("  table: required", '  name: ""', "  seed: null", "  doors: [1, .inf]"):
        assert f"{line}\n      " in shown


def test_gymnasiums_are_listed_apart(capsys):
    """The newest of each, without those that are built in or that only say where they have gone."""
    gymnasium.register(
        "Maze-v2",
        "no_such_package.envs:Maze",
        max_episode_steps=7,
        kwargs={"size": 5, "key": object()},
    )
    gymnasium.register("Maze-v10", "no_such_package.envs:Maze", kwargs={"size": 5, "key": object()})
    try:
        command.environments(gymnasium=True)
        titles, *lines = capsys.readouterr().out.splitlines()
        command.environments("Maze-v2", json=True)
        maze = json.loads(capsys.readouterr().out)
    finally:
        for name in ("Maze-v2", "Maze-v10"):
            gymnasium.registry.pop(name)
    assert re.split(r"  +", titles) == ["id", "class", "time limit", "from"]
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}
    assert rows["LunarLander-v3"] == [
        *(
            "gymnasium.envs.box2d.lunar_lander:LunarLander",
            "1,000 steps",
            f"gymnasium {gymnasium.__version__}",
        ),
    ]
    assert rows["Maze-v10"] == ["no_such_package.envs:Maze", "none", "no_such_package"]
    for absent in ("Maze-v2", "CartPole-v0", "CartPole-v1", "Ant-v4", "GymV21Environment-v0"):
        assert absent not in rows
    assert maze["observation_space"] is None
    assert maze["max_episode_steps"] == 7
    assert [(each["name"], each["default"]) for each in maze["arguments"]] == [("size", 5)]


def test_those_of_packages_are_listed_and_broken_ones_named(install, capsys):
    install(
        "my-package",
        {"Maze": "my_package.envs:Maze", "Hall": "my_package.envs:Hall"},
        group=ENVIRONMENT_GROUP,
    )
    install(
        "rival", {"Hall": "rival:Hall", "CartPole-v1": "rival:CartPole"}, group=ENVIRONMENT_GROUP
    )
    command.environments()
    captured = capsys.readouterr()
    last = re.split(r"  +", captured.out.splitlines()[-1])
    assert last == [
        *(
            "Maze",
            "installed: my_package.envs:Maze",
            "known once a job starts",
            "known once a job starts",
        ),
        *("known once a job starts", "installed", "cpu", "my-package 1.2"),
    ]
    assert captured.err.splitlines() == [
        "podracer: environment 'CartPole-v1' of package rival 1.2: the id is a built-in "
        "environment's; choose another",
        "podracer: environment 'Hall' of package my-package 1.2: rival 1.2 offers one of the same "
        "id; remove one of them",
        "podracer: environment 'Hall' of package rival 1.2: my-package 1.2 offers one of the same "
        "id; remove one of them",
    ]
    command.environments("Maze")
    assert "from         my-package 1.2, my_package.envs:Maze\n" in capsys.readouterr().out
    with raises(InvalidInput, "BROKEN_ENVIRONMENT", field="environment.id"):
        command.environments("Hall")


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        ("cartpole", "unknown environment 'cartpole'; did you mean CartPole-v1 or "),
        ("pendulum-v3", "unknown environment 'pendulum-v3'; did you mean Pendulum-v1 or "),
        ("qqqqqq", "unknown environment 'qqqqqq'; `podracer environments` lists all environments"),
    ],
)
def test_an_unknown_id_is_answered_with_the_nearest(wrong, answer):
    with pytest.raises(InvalidInput, match=re.escape(answer)) as caught:
        command.environments(wrong)
    assert exit_code(caught.value) == 2
