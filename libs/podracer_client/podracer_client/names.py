"""Short resource names of users (`cartpole-x7` for `projects/default/jobs/cartpole-x7`), and times
of servers."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from podracer_core.errors import FieldViolation, InvalidInput
from podracer_platform.rpc.resource_names import LABEL, is_label, is_name

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

DEFAULT_PROJECT = "projects/default"
_CHECKPOINT = re.compile(rf"projects/{LABEL}/jobs/{LABEL}/(?:agents/[^/]+/)?checkpoints/[^/]+")


def moment(timestamp: Timestamp) -> datetime | None:
    """In UTC, in whole seconds; None for none, and for what no calendar has in any time zone."""
    return (
        datetime.fromtimestamp(timestamp.seconds, UTC)
        if 0 < timestamp.seconds < 253_370_764_800
        else None
    )


def seconds(duration: Duration | Timestamp) -> float:
    return duration.seconds + duration.nanos * 1e-9


def time_json(timestamp: Timestamp) -> str | None:
    """In UTC as JSON has it; None for what no calendar has."""
    with suppress(ValueError):
        return timestamp.ToJsonString()
    return None


def time_text(timestamp: Timestamp) -> str:
    """Local date and time; `–` for none."""
    when = moment(timestamp)
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}" if when else "–"


def enum_word(enum: Any, value: int) -> str:
    """`RUNNING` for JOB_STATE_RUNNING of JobState; empty for what is not set, the number for what
    is not known here."""
    if not value:
        return ""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper()
    word: str = enum.Name(value) if value in enum.values() else str(value)
    return word.removeprefix(f"{prefix}_")


def job_name(text: str) -> str:
    """The full name of a job given by its name or id. Raises InvalidInput if it is neither."""
    if is_name("job", text):
        return text
    if is_label(text):
        return f"{DEFAULT_PROJECT}/jobs/{text}"
    problem = (
        f"{text!r} is not the name of a job; expected an id such as cartpole-x7 or "
        "projects/default/jobs/cartpole-x7"
    )
    raise InvalidInput(problem, field="job", reason="INVALID_NAME", name=text)


def is_job_name(text: str) -> bool:
    """Whether `text` may be the name or the id of a job."""
    return is_name("job", text) or is_label(text)


def leaderboard_name(job: str) -> str:
    """The full name of a job's leaderboard, from the job's name or id. Raises InvalidInput."""
    return job_name(job).replace("/jobs/", "/leaderboards/")


def short_name(name: str) -> str:
    """The last part of a resource name."""
    return name.rpartition("/")[2]


def is_checkpoint_name(text: str) -> bool:
    """Whether `text` names a checkpoint on a server: `projects/p/jobs/j/checkpoints/best`, or an
    agent's."""
    return _CHECKPOINT.fullmatch(text) is not None


def best_checkpoint_name(job: str) -> str:
    """The ArtifactService name of the checkpoint of a job's final policy."""
    return f"{job}/checkpoints/best"


def job_of_best_checkpoint(text: str) -> str:
    """The inverse of `best_checkpoint_name`; empty for anything else."""
    return text.removesuffix("/checkpoints/best") if is_name("best checkpoint", text) else ""


def refused(field: str, problem: str) -> InvalidInput:
    """The error for an invalid field of a job file, or option."""
    return InvalidInput(f"{field}: {problem}", violations=[FieldViolation(field, problem)])
