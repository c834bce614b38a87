"""docs/deploy.md says what bad deployments say, in the words of the code."""

from __future__ import annotations

import re

from support.processes import ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text()


def test_the_messages_that_are_shown_are_those_of_the_code():
    """Literally, with … for what the code fills in."""
    sources = [
        path.read_text() for part in ("libs", "services") for path in (ROOT / part).rglob("*.py")
    ]
    joined = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    code = re.sub(r"\{[^{}]*\}", "…", joined)
    table = TEXT.partition("## What bad deployments say")[2]
    messages = [
        message
        for row in table.splitlines()
        if row.startswith("| ")
        for message in re.findall(r"`([^`]*…[^`]*)`", row)
    ]
    assert len(messages) == 8
    for message in messages:
        assert message.removesuffix(": …") in code, message
