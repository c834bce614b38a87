"""Resource names: `projects/p/leaderboards/j`, `projects/p/jobs/j`, `projects/p/jobs/j/agents/a0001`."""

from __future__ import annotations

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_core.rpc.resource_names import check_label, parse


def check_leaderboard(name: str, field: str = "leaderboard") -> str:
    """`name`, unless it is no leaderboard's: then InvalidInput."""
    parse("leaderboard", name, field)
    return name


def check_job(name: str, field: str) -> str:
    """`name`, unless it is no job's: then InvalidInput."""
    parse("job", name, field)
    return name


def check_agent(name: str, field: str = "agent") -> str:
    """`name`, unless it is no agent's: then InvalidInput."""
    parse("agent", name, field)
    return name


def check_alias(name: str, field: str = "alias") -> str:
    """`name`, unless it is no DNS label: then InvalidInput."""
    check_label(name, field)
    return name


def check_text(value: str, field: str, limit: int = 200) -> str:
    """`value`, unless it is empty or longer than `limit`: then InvalidInput."""
    if not 0 < len(value) <= limit:
        raise _refuse(field, f"expected 1 to {limit} characters, got {len(value)}")
    return value


def agent_name(job: str, number: int) -> str:
    """The name of a job's agent by its number, from 1."""
    return f"{job}/agents/a{number:04}"


def _refuse(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
