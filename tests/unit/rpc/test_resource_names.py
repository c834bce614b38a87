"""Resource names."""

from __future__ import annotations

import pytest

from podracer_core.errors import InvalidInput
from podracer_platform.rpc import resource_names as names


def test_names_are_taken_apart():
    assert names.parse("job", "projects/p/jobs/my-job").id == "my-job"
    found = names.parse_any(
        ("artifact", "checkpoint"), "projects/p/jobs/j/agents/a0001/checkpoints/10-2"
    )
    assert (found.kind, found.job, found.agent, found.id) == ("checkpoint", "j", "a0001", "10-2")
    assert names.parse_parent("") == "default"


@pytest.mark.parametrize(
    "text",
    ["", "jobs/j", "projects/p/jobs/", "projects/p/jobs/J", "projects/p/jobs/../x", "projects/p/jobs/j/", "x" * 999,
     "projects/p/jobs/x\x1b[31m", "projects/p/jobs/<script>", "projects/p/jobs/x\u202e",
     "projects/p/jobs/j\n"],
)  # fmt: skip
def test_a_malformed_name_is_refused_with_the_form_that_is_expected(text):
    with pytest.raises(InvalidInput, match="projects/p/jobs/j") as caught:
        names.parse("job", text)
    assert caught.value.violations[0].field == "name"
    assert len(caught.value.message) < 400
