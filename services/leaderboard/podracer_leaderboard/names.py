"""Resource names: `projects/p/leaderboards/j`, `projects/p/jobs/j`, `projects/p/jobs/j/agents/a0001`."""

from __future__ import annotations

import re

from podracer_core.errors import FieldViolation, InvalidInput

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PATTERNS = {
    "projects/p/leaderboards/j": re.compile(f"projects/{_LABEL}/leaderboards/{_LABEL}"),
    "projects/p/jobs/j": re.compile(f"projects/{_LABEL}/jobs/{_LABEL}"),
    "projects/p/jobs/j/agents/a": re.compile(f"projects/{_LABEL}/jobs/{_LABEL}/agents/{_LABEL}"),
    "a DNS label (champion)": re.compile(_LABEL),
}
_LEADERBOARD, _JOB, _AGENT, _ALIAS = _PATTERNS


def check_leaderboard(name: str, field: str = "leaderboard") -> str:
    """`name`, unless it is no leaderboard's: then InvalidInput."""
    return _check(name, field, _LEADERBOARD)


def check_job(name: str, field: str) -> str:
    """`name`, unless it is no job's: then InvalidInput."""
    return _check(name, field, _JOB)


def check_agent(name: str, field: str = "agent") -> str:
    """`name`, unless it is no agent's: then InvalidInput."""
    return _check(name, field, _AGENT)


def check_alias(name: str, field: str = "alias") -> str:
    """`name`, unless it is no DNS label: then InvalidInput."""
    return _check(name, field, _ALIAS)


def check_text(value: str, field: str, limit: int = 200) -> str:
    """`value`, unless it is empty or longer than `limit`: then InvalidInput."""
    if not 0 < len(value) <= limit:
        raise _refuse(field, f"expected 1 to {limit} characters, got {len(value)}")
    return value


def agent_name(job: str, number: int) -> str:
    """The name of a job's agent by its number, from 1."""
    return f"{job}/agents/a{number:04}"


def _check(name: str, field: str, form: str) -> str:
    if not _PATTERNS[form].fullmatch(name):
        raise _refuse(field, f"expected {form}, got {name!r}")
    return name


def _refuse(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
