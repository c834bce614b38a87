"""docs/environments/README.md names every environment of ours as the catalogue does."""

from __future__ import annotations

import re
from pathlib import Path

from podracer_core.catalogue import EnvironmentInfo, describe, known_environments

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "environments"


def test_the_table_is_the_catalogue():
    text = (FOLDER / "README.md").read_text()
    found = [line for line in text.splitlines() if line.startswith("| `")]
    assert found == [_row(info) for info in known_environments().values()]


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", (FOLDER / "README.md").read_text()):
        assert (FOLDER / target).exists(), target


def _row(info: EnvironmentInfo) -> str:
    spaces = (
        describe(space) if space else "by its arguments"
        for space in (info.observation_space, info.action_space)
    )
    limit = f"{info.max_episode_steps:,}" if info.max_episode_steps else "by its arguments"
    return (
        "| "
        f"{' | '.join([f'`{info.id}`', info.description, *spaces, limit, ', '.join(info.devices)])} "
        "|"
    )
