"""Arguments of built-in environments, told wrong before anything is started."""

from __future__ import annotations

import json

import pytest

from podracer_core.catalogue import EnvironmentSpec, known_environments
from podracer_core.sections import Checks
from podracer_platform.jobs import check_environment


def _problems(
    environment: EnvironmentSpec, data: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    check = Checks()
    check_environment(check, environment, data or {})
    return [(violation.field, violation.message) for violation in check.violations]


@pytest.mark.parametrize(
    ("environment_id", "kwargs", "field", "problem"),
    [
        ("Pendulum-v1", {"gravity": 9.81}, "gravity", "unknown argument; expected one of g"),
        (
            "CartPole-v1",
            {"sutton_barto": True},
            "sutton_barto",
            "did you mean sutton_barto_reward?",
        ),
        ("Pendulum-v1", {"g": "9.81"}, "g", "expected a number, such as 10.0; got '9.81'"),
        ("Pendulum-v1", {"g": True}, "g", "expected a number, such as 10.0; got true"),
        (
            "CartPole-v1",
            {"sutton_barto_reward": 1},
            "sutton_barto_reward",
            "expected true or false, such as false",
        ),
        (
            "PointChasing-v0",
            {"dimensions": 2.5},
            "dimensions",
            "expected a whole number, such as 2; got 2.5",
        ),
        ("Acrobot-v1", {"book_or_nips": 3}, "book_or_nips", "expected text, such as 'book'; got 3"),
    ],
)
def test_an_argument_that_cannot_be_right(environment_id, kwargs, field, problem):
    ((found, message),) = _problems(EnvironmentSpec(id=environment_id, kwargs=kwargs))
    assert found == f"environment.kwargs.{field}"
    assert problem in message


@pytest.mark.parametrize("environment_id", known_environments())
def test_every_default_is_right_where_it_is_written(environment_id):
    known = known_environments()[environment_id].arguments
    kwargs = {
        each.name: each.default for each in known if not each.is_file and _is_json(each.default)
    }
    data = {each.name: "file" for each in known if each.is_file}
    assert _problems(EnvironmentSpec(id=environment_id, kwargs=kwargs), data) == []


def _is_json(value: object) -> bool:
    return "Infinity" not in json.dumps(value)


def test_a_whole_number_that_came_as_a_real_one_is_right():
    assert _problems(EnvironmentSpec(id="PointChasing-v0", kwargs={"dimensions": 3.0})) == []


def test_files():
    trading = EnvironmentSpec(id="StockTrading-v0")
    assert _problems(trading, {"table": "prices.csv"}) == []
    ((field, message),) = _problems(trading)
    assert field == "data.table"
    assert message.startswith("is missing: ")
    assert message.endswith("such as {table: ./prices.csv}")
    problems = _problems(trading, {"tabel": "prices.csv"})
    assert problems[0] == ("data.tabel", "StockTrading-v0 takes no such file; did you mean table?")
    ((field, message),) = _problems(
        EnvironmentSpec(id="StockTrading-v0", kwargs={"table": "prices.csv"})
    )
    assert (field, message) == (
        "environment.kwargs.table",
        "is a file: name it under data, such as {table: ./prices.csv}",
    )
    assert _problems(EnvironmentSpec(id="Pendulum-v1"), {"table": "x"}) == [
        ("data.table", "Pendulum-v1 takes no such file; it has none")
    ]


def test_of_an_environment_that_is_not_built_in_nothing_is_known():
    assert _problems(EnvironmentSpec(entry_point="a:B", kwargs={"x": 1}), {"y": "z"}) == []
