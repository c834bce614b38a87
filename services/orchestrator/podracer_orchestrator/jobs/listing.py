"""Pages of jobs, and the filter of ListJobs, a part of AIP-160:

state=RUNNING AND environment="CartPole-v1" AND labels.team!=vision
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NoReturn

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_orchestrator.jobs.state import JobState
from podracer_orchestrator.stored_messages import spec_of
from podracer_orchestrator.tables import JobRow

MAX_LENGTH = 1000
_WORD = r'"(?:[^"\\]|\\.)*"|[\w\-.:/+]+'
_RESTRICTION = re.compile(
    rf"\s*(?P<field>[a-z_]+)(?:\.(?P<key>{_WORD}))?\s*(?P<operator>[<>!]=|[<>=])\s*(?P<value>{_WORD})\s*(?P<and>AND\b)?"
)
_EQUALITY = {"=": operator.eq, "!=": operator.ne}
_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_FIELDS = dict.fromkeys(("state", "display_name", "environment", "labels"), _EQUALITY) | {
    "create_time": _ORDER
}
_EXPECTED = "state, display_name, environment, labels.KEY or create_time"


@dataclass(slots=True)
class JobFilter:
    """A filter: conditions for the database, and further ones on a job's spec."""

    columns: list[ColumnElement[bool]] = field(default_factory=list)
    checks: list[Callable[[job_pb2.JobSpec], bool]] = field(default_factory=list)

    def takes(self, job: JobRow) -> bool:
        """Whether a job that the database has selected passes the filter."""
        if not self.checks:
            return True
        spec = spec_of(job)
        return all(check(spec) for check in self.checks)


def parse_filter(text: str) -> JobFilter:
    """Parse a filter. Raises InvalidInput with the place of a mistake and what is expected
    there."""
    found, place, goes_on = JobFilter(), 0, bool(text.strip())
    if len(text) > MAX_LENGTH:
        _refuse(MAX_LENGTH, f"expected at most {MAX_LENGTH:,} characters")
    while goes_on:
        match = _RESTRICTION.match(text, place)
        if match is None:
            _refuse(
                place,
                "expected a field, an operator and a value, as in state=RUNNING, not "
                f"{text[place:][:30]!r}",
            )
        _add(found, match)
        place, goes_on = match.end(), match["and"] is not None
    if text[place:].strip():
        _refuse(place, f"expected AND, not {text[place:][:30]!r}")
    return found


def after(
    session: Session, project: str, states: Sequence[str], wanted: JobFilter, token: str, limit: int
) -> Sequence[JobRow]:
    """Jobs of a project after a page's token (the uid of its last job), newest first."""
    query = select(JobRow).where(JobRow.project == project, *wanted.columns)
    if states:
        query = query.where(JobRow.state.in_(states))
    if token:
        last = session.get(JobRow, token)
        if last is None:
            raise InvalidInput(
                "page_token is unknown, or its job was deleted: list again from the first page",
                violations=[FieldViolation("page_token", "unknown")],
            )
        earlier = (JobRow.create_time == last.create_time) & (JobRow.uid < last.uid)
        query = query.where(or_(JobRow.create_time < last.create_time, earlier))
    query = query.order_by(JobRow.create_time.desc(), JobRow.uid.desc())
    if not wanted.checks:
        query = query.limit(limit)
    with closing(session.scalars(query.execution_options(yield_per=limit))) as jobs_found:
        return list(islice(filter(wanted.takes, jobs_found), limit))


def _add(found: JobFilter, match: re.Match[str]) -> None:
    name, key, value = match["field"], _plain(match["key"] or ""), _plain(match["value"])
    if name not in _FIELDS or (name == "labels") != (match["key"] is not None):
        _refuse(match.start("field"), f"expected {_EXPECTED}, not {name[:30]!r}")
    if match["operator"] not in _FIELDS[name]:
        _refuse(match.start("operator"), f"expected one of {' '.join(_FIELDS[name])} for {name}")
    compare: Callable[[Any, Any], Any] = _FIELDS[name][match["operator"]]
    if name == "create_time":
        found.columns.append(compare(JobRow.create_time, _time(value, match.start("value"))))
    elif name == "state":
        if value not in list(JobState):
            _refuse(
                match.start("value"), f"expected one of {', '.join(JobState)}, not {value[:30]!r}"
            )
        found.columns.append(compare(JobRow.state, value))
    elif name == "labels":
        found.checks.append(lambda spec: compare(spec.labels.get(key, ""), value))
    elif name == "environment":
        found.checks.append(lambda spec: compare(spec.environment.id, value))
    else:
        found.checks.append(lambda spec: compare(spec.display_name, value))


def _plain(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1]) if word.startswith('"') else word


def _time(text: str, place: int) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        _refuse(place, f"expected a time such as 2026-01-31T00:00:00Z, not {text[:30]!r}")
    return time


def _refuse(place: int, problem: str) -> NoReturn:
    message = f"at character {place + 1}: {problem}"
    raise InvalidInput(
        f"filter, {message}",
        violations=[FieldViolation("filter", message)],
        reason="INVALID_FILTER",
    )
