"""Makes and parses resource names: `projects/p/jobs/j`, `projects/p/pods/x`, …"""

from __future__ import annotations

import re
from dataclasses import dataclass

from podracer_core.errors import InvalidInput

DEFAULT_PROJECT = "default"
"""The project of a request whose `parent` is unset."""

LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
"""The pattern of a DNS label: a project, a job, an alias, a data set."""

_IDENTIFIER = r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,126}[A-Za-z0-9])?"
_LABEL_PATTERN = re.compile(LABEL)
_PATTERNS = {
    "project": re.compile(rf"projects/(?P<project>{LABEL})"),
    "job": re.compile(rf"projects/(?P<project>{LABEL})/jobs/(?P<id>{LABEL})"),
    "leaderboard": re.compile(rf"projects/(?P<project>{LABEL})/leaderboards/(?P<id>{LABEL})"),
    "pod": re.compile(rf"projects/(?P<project>{LABEL})/pods/(?P<id>{_IDENTIFIER})"),
    "lease": re.compile(rf"projects/(?P<project>{LABEL})/leases/(?P<id>{_IDENTIFIER})"),
    "artifact": re.compile(rf"projects/(?P<project>{LABEL})/artifacts/(?P<id>{_IDENTIFIER})"),
    "agent": re.compile(
        rf"projects/(?P<project>{LABEL})/jobs/(?P<job>{LABEL})/agents/(?P<id>{_IDENTIFIER})"
    ),
    "checkpoint": re.compile(
        rf"projects/(?P<project>{LABEL})/jobs/(?P<job>{LABEL})/agents/(?P<agent>{_IDENTIFIER})"
        rf"/checkpoints/(?P<id>{_IDENTIFIER})"
    ),
    "best checkpoint": re.compile(
        rf"projects/(?P<project>{LABEL})/jobs/(?P<job>{LABEL})/checkpoints/(?P<id>best)"
    ),
}
_EXAMPLES = {
    "project": "projects/p",
    "job": "projects/p/jobs/j",
    "leaderboard": "projects/p/leaderboards/j",
    "pod": "projects/p/pods/x",
    "lease": "projects/p/leases/x",
    "artifact": "projects/p/artifacts/x",
    "agent": "projects/p/jobs/j/agents/a",
    "checkpoint": "projects/p/jobs/j/agents/a/checkpoints/c",
    "best checkpoint": "projects/p/jobs/j/checkpoints/best",
}


@dataclass(frozen=True, slots=True)
class Name:
    """A parsed name: its kind, its project, its last part, and the parts between where there are
    any."""

    kind: str
    project: str
    id: str
    job: str = ""
    agent: str = ""


def is_label(text: str) -> bool:
    """Whether `text` is a DNS label of at most 63 characters."""
    return _LABEL_PATTERN.fullmatch(text) is not None


def is_name(kind: str, text: str) -> bool:
    """Whether `text` is the name of a `kind`."""
    return _PATTERNS[kind].fullmatch(text) is not None


def parse(kind: str, text: str, field: str = "name") -> Name:
    """Parse a name of one kind. Raises InvalidInput with the expected form."""
    match = _PATTERNS[kind].fullmatch(text)
    if match is None:
        message = f"{text[:200]!r} is not the name of a {kind}: expected {_EXAMPLES[kind]}"
        raise InvalidInput(message, field=field, reason="INVALID_NAME")
    parts = match.groupdict()
    return Name(
        kind, parts["project"], parts.get("id", ""), parts.get("job", ""), parts.get("agent", "")
    )


def parse_any(kinds: tuple[str, ...], text: str, field: str = "name") -> Name:
    """Parse a name of one of several kinds. Raises InvalidInput."""
    for kind in kinds:
        if is_name(kind, text):
            return parse(kind, text, field)
    expected = " or ".join(_EXAMPLES[kind] for kind in kinds)
    raise InvalidInput(
        f"{text[:200]!r} is not a name of the form {expected}", field=field, reason="INVALID_NAME"
    )


def parse_parent(text: str) -> str:
    """The project of a `parent` field, which may be unset."""
    return parse("project", text, "parent").project if text else DEFAULT_PROJECT


def wrong_field(field: str, problem: str) -> InvalidInput:
    """The error for a field of a request that is wrong."""
    return InvalidInput.of(field, problem)


def check_label(text: str, field: str) -> None:
    """Raise InvalidInput unless `text` is a DNS label of at most 63 characters."""
    if not is_label(text):
        message = (
            f"{text[:200]!r} is not a DNS label: lower-case letters, digits and '-', at most 63"
        )
        raise InvalidInput(message, field=field, reason="INVALID_NAME")


def job_name(project: str, job_id: str) -> str:
    return f"projects/{project}/jobs/{job_id}"


def leaderboard_name(project: str, job_id: str) -> str:
    return f"projects/{project}/leaderboards/{job_id}"


def pod_name(project: str, pod_id: str) -> str:
    return f"projects/{project}/pods/{pod_id}"


def lease_name(project: str, lease_id: str) -> str:
    return f"projects/{project}/leases/{lease_id}"


def artifact_name(project: str, artifact_id: str) -> str:
    return f"projects/{project}/artifacts/{artifact_id}"


def last_part(name: str) -> str:
    """The part after the last slash: `a0003` of an agent's name."""
    return name.rpartition("/")[2]
