"""Keys that belong to things, and the way back."""

from __future__ import annotations

import pytest

from podracer_core.errors import InvalidInput
from podracer_core.storage import (
    CheckpointPlace,
    agent_prefix,
    artifact_key,
    checkpoint_prefix,
    job_prefix,
)


def test_prefixes_are_those_of_the_design():
    prefix = checkpoint_prefix("default", "1f2e", "a0001", 120_000, 7)
    assert prefix == "projects/default/jobs/1f2e/agents/a0001/checkpoints/120000-7/"
    assert prefix.startswith(agent_prefix("default", "1f2e", "a0001"))
    assert prefix.startswith(job_prefix("default", "1f2e"))
    assert CheckpointPlace.parse(prefix) == CheckpointPlace("default", "1f2e", "a0001", 120_000, 7)
    assert (
        artifact_key("default", "code-1", "src/env.py")
        == "projects/default/artifacts/code-1/src/env.py"
    )


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "a b", "-a", "ä", "a" * 129, "a\n"])
def test_refuses_ids_that_could_lead_elsewhere(part):
    for arguments in ((part, "j", "a"), ("p", part, "a"), ("p", "j", part)):
        with pytest.raises(InvalidInput):
            checkpoint_prefix(*arguments, 1, 1)
    with pytest.raises(InvalidInput):
        artifact_key("p", part, "f")


@pytest.mark.parametrize(("env_steps", "fence"), [(-1, 1), (1, -1)])
def test_refuses_negative_numbers(env_steps, fence):
    with pytest.raises(InvalidInput):
        checkpoint_prefix("p", "j", "a", env_steps, fence)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "projects/p/jobs/j/agents/a/checkpoints/1-2",
        "projects/p/jobs/j/agents/a/checkpoints/01-2/",
        "projects/p/jobs/j/agents/a/checkpoints/1/",
        "projects/p/jobs/../agents/a/checkpoints/1-2/",
        "projects/p/jobs/j/agents/a/checkpoints/1-2/x/",
    ],
)
def test_parses_nothing_else(prefix):
    with pytest.raises(InvalidInput):
        CheckpointPlace.parse(prefix)
