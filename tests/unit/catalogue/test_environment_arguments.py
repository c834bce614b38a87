"""What the catalogue says of a built-in environment's arguments is what its class takes."""

from __future__ import annotations

import inspect
import json
import pkgutil

import pytest

from podracer_core.catalogue import BUILT_IN_ENVIRONMENTS, known_environments

# every environment takes these; jobs set them elsewhere
OURS = ("num_envs", "device", "max_episode_steps")


@pytest.mark.parametrize("environment_id", BUILT_IN_ENVIRONMENTS)
def test_names_and_defaults(environment_id):
    info = BUILT_IN_ENVIRONMENTS[environment_id]
    parameters = dict(inspect.signature(pkgutil.resolve_name(info.factory)).parameters)
    num_envs, device, limit = (parameters.pop(name) for name in OURS)
    parameters.pop("evaluation", None)  # the evaluator's to say
    assert num_envs.default is inspect.Parameter.empty
    assert device.default == "cpu"
    assert limit.default == info.max_episode_steps
    assert {each.name: _default(each.default, each.required) for each in info.arguments} == {
        name: _default(parameter.default, parameter.default is inspect.Parameter.empty)
        for name, parameter in parameters.items()
    }


@pytest.mark.parametrize("environment_id", known_environments())
def test_a_job_can_say_them(environment_id):
    for argument in known_environments()[environment_id].arguments:
        json.dumps(argument.default)
        assert argument.meaning
        assert not argument.meaning.endswith(".")
        assert argument.required == (argument.example is not None)


def _default(value: object, required: bool) -> object:
    return "required" if required else list(value) if isinstance(value, tuple) else value
