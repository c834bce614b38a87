"""Catalogue values through messages and back."""

from __future__ import annotations

import math

import pytest

from podracer.common.v1 import agent_pb2, environment_pb2
from podracer_core.catalogue import (
    BUILT_IN_ENVIRONMENTS,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentSpec,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    StoredFile,
    TupleSpace,
)
from podracer_core.errors import InvalidInput
from podracer_platform.messages import (
    description_to_message,
    environment_from_message,
    environment_to_message,
    hyperparameter_from_message,
    hyperparameter_to_message,
    space_from_message,
    space_to_message,
)
from support.errors import raises

CODE = StoredFile("projects/p/artifacts/a/content", "0a" * 32, 1234, "code.zip")
TABLE = StoredFile("projects/p/artifacts/b/content", "0b" * 32, 0, "prices.csv")
SPACES: list[Space] = [
    BoxSpace(-1.0, 1.0, (3,)),
    BoxSpace((-math.inf, 0.0), (math.inf, 2.5), (2,), "float64"),
    BoxSpace(0.0, 255.0, (84, 84, 3), "uint8"),
    BoxSpace(0.0, 1.0, ()),
    DiscreteSpace(5),
    DiscreteSpace(3, -1),
    MultiDiscreteSpace((3, 4)),
    MultiDiscreteSpace((3, 4), (1, 0)),
    MultiBinarySpace((2, 2)),
    DictSpace((("position", BoxSpace(-1.0, 1.0, (2,))), ("goal", DiscreteSpace(4)))),
    TupleSpace((DiscreteSpace(2), TupleSpace(()))),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_spaces(space):
    message = environment_pb2.Space.FromString(space_to_message(space).SerializeToString())
    assert space_from_message(message) == space


def test_a_box_without_a_dtype_is_of_float32():
    message = environment_pb2.Space(box=environment_pb2.BoxSpace(shape=[1], low=[0], high=[1]))
    assert space_from_message(message) == BoxSpace(0.0, 1.0, (1,), "float32")


def test_what_is_no_space_is_refused():
    with pytest.raises(InvalidInput):
        space_from_message(environment_pb2.Space())
    with pytest.raises(InvalidInput):
        space_to_message(BoxSpace(0.0, 1.0, (1,), "complex64"))


@pytest.mark.parametrize(
    "spec",
    [
        EnvironmentSpec(id="Pendulum-v1"),
        EnvironmentSpec(id="Pendulum-v1", max_episode_steps=50),
        EnvironmentSpec(entry_point="a.b:C", kwargs={"n": 3, "f": 0.5, "s": ["x", 1, {"y": None}]}),
        EnvironmentSpec(entry_point="a.b:C", code=CODE, data={"table": TABLE, "map": CODE}),
    ],
)
def test_environments(spec):
    message = environment_pb2.EnvironmentSpec.FromString(
        environment_to_message(spec).SerializeToString()
    )
    back = environment_from_message(message)
    assert back == spec
    if spec.kwargs:
        assert isinstance(back.kwargs["n"], int)


def test_an_environment_that_cannot_be_right_is_refused():
    with pytest.raises(InvalidInput):
        environment_from_message(environment_pb2.EnvironmentSpec())


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_arguments_that_json_does_not_know_are_refused(number):
    message = environment_pb2.EnvironmentSpec(id="Pendulum-v1")
    message.kwargs.fields["g"].number_value = number
    with raises(InvalidInput, field="environment.kwargs") as refused:
        environment_from_message(message)
    assert refused.value.violations[0].field == "environment.kwargs"


@pytest.mark.parametrize(
    "local",
    [
        {"entry_point": "a:B", "code_path": "/x"},
        {"id": "CartPole-v1", "data": {"table": "/x/prices.csv"}},
    ],
)
def test_what_is_only_here_has_no_form_on_the_wire(local):
    with pytest.raises(InvalidInput, match="upload"):
        environment_to_message(EnvironmentSpec(**local))


def test_a_reference_that_cannot_be_right_is_named():
    message = environment_to_message(
        EnvironmentSpec(entry_point="a:B", code=CODE, data={"table": TABLE})
    )
    message.data["table"].sha256 = "nonsense"
    message.data["table"].name = "../prices.csv"
    with pytest.raises(InvalidInput) as refused:
        environment_from_message(message)
    assert [violation.field for violation in refused.value.violations] == [
        "data.table.sha256",
        "data.table.name",
    ]


def test_a_description():
    info = BUILT_IN_ENVIRONMENTS["CartPole-v1"]
    assert info.observation_space is not None
    assert info.action_space is not None
    spec = EnvironmentSpec("CartPole-v1")
    message = description_to_message(spec, info.observation_space, info.action_space, 500)
    assert space_from_message(message.action_space) == DiscreteSpace(2)
    assert (message.max_episode_steps, message.backend) == (500, "torch")
    assert (
        description_to_message(
            spec, info.observation_space, info.action_space, None
        ).max_episode_steps
        == 0
    )
    assert not message.deterministic_evaluation
    assert message.preparation == ""


def test_a_long_preparation_is_cut_off():
    def told(preparation: str) -> str:
        space = DiscreteSpace(2)
        spec = EnvironmentSpec("CartPole-v1")
        return description_to_message(spec, space, space, None, preparation=preparation).preparation

    assert told("two gaps filled\n") == "two gaps filled"
    assert told("é" * 4000) == "é" * 4000
    assert told("é" * 4001) == "é" * 3998 + " …"
    assert told("/data/\udce9.csv: 3 tickers") == "/data/?.csv: 3 tickers"


@pytest.mark.parametrize("value", [0.5, 3, True, False, "tanh", (64, 32), ()], ids=str)
def test_hyperparameters(value):
    message = agent_pb2.HyperparameterValue.FromString(
        hyperparameter_to_message(value).SerializeToString()
    )
    back = hyperparameter_from_message(message)
    assert back == value
    assert type(back) is type(value)


def test_a_hyperparameter_without_a_value_is_refused():
    with pytest.raises(InvalidInput):
        hyperparameter_from_message(agent_pb2.HyperparameterValue())
