"""The filter of ListJobs, a part of AIP-160: `state=RUNNING AND environment="CartPole-v1" AND labels.team!=vision`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from sqlalchemy import ColumnElement

from podracer.orchestrator.v1 import job_pb2
from podracer_core.errors import FieldViolation, InvalidInput
from podracer_orchestrator.job_plan import read_spec
from podracer_orchestrator.job_state import JobState
from podracer_orchestrator.tables import JobRow

MAX_LENGTH = 1000
_TOKEN = re.compile(r'\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<operator>[<>!]=|[<>=])|(?P<word>[\w\-.:/+]+))')
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY, _ORDER = ("=", "!="), ("<", "<=", ">", ">=")
_OF_SPEC: Mapping[str, Callable[[job_pb2.JobSpec], str]] = {
    "display_name": lambda spec: spec.display_name,
    "environment": lambda spec: spec.environment.id,
}
_LABEL = "labels."
_FIELDS = f"state, {', '.join(_OF_SPEC)}, {_LABEL}KEY or create_time"


@dataclass(slots=True)
class JobFilter:
    """What the database selects by, and what has to be so of a job's spec besides."""

    columns: list[ColumnElement[bool]] = field(default_factory=list)
    checks: list[Callable[[job_pb2.JobSpec], bool]] = field(default_factory=list)

    def takes(self, job: JobRow) -> bool:
        """Whether a job that the database has selected is one of those wanted."""
        if not self.checks:
            return True
        spec = read_spec(job.spec)
        return all(check(spec) for check in self.checks)


def parse_filter(text: str) -> JobFilter:
    """Raises InvalidInput for anything that is not such a filter, with the place and what would be right there."""
    found = JobFilter()
    if len(text) > MAX_LENGTH:
        _refuse(MAX_LENGTH, f"expected at most {MAX_LENGTH:,} characters")
    words = _Words(text)
    while not words.at_end:
        if found.columns or found.checks:
            words.take("AND", lambda kind, word: kind == "word" and word == "AND")
        _read_restriction(words, found)
    return found


class _Words:
    """Walks over a filter's words."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._place = 0
        self.place = 0
        """Where the word that was taken last began."""

    @property
    def at_end(self) -> bool:
        return self._place >= len(self._text)

    def take(self, expected: str, fits: Callable[[str, str], bool]) -> str:
        """The next word, without quotes. Raises InvalidInput unless it `fits`, by its kind and itself."""
        match = _TOKEN.match(self._text, self._place)
        kind = (match.lastgroup or "") if match else ""
        if match is None or not fits(kind, match[kind]):
            rest = self._text[self._place :].lstrip()
            _refuse(len(self._text) - len(rest), f"expected {expected}, not {rest[:30]!r}")
        self.place, self._place = match.start(kind), match.end()
        return re.sub(r"\\(.)", r"\1", match[kind][1:-1]) if kind == "quoted" else match[kind]

    def take_value(self, expected: str = "a value") -> str:
        return self.take(expected, lambda kind, _: kind in ("quoted", "word"))

    def take_operator(self, allowed: tuple[str, ...]) -> str:
        return self.take(f"one of {' '.join(allowed)}", lambda _, word: word in allowed)


def _read_restriction(words: _Words, found: JobFilter) -> None:
    name = words.take(_FIELDS, lambda kind, _: kind == "word")
    place = words.place
    if name == "create_time":
        compare = _COMPARISONS[words.take_operator(_ORDER)]
        found.columns.append(compare(JobRow.create_time, _time(words)))
    elif name == "state":
        compare = _COMPARISONS[words.take_operator(_EQUALITY)]
        state = words.take_value()
        if state not in list(JobState):
            _refuse(words.place, f"{state[:30]!r} is no state; expected one of {', '.join(JobState)}")
        found.columns.append(compare(JobRow.state, state))
    elif name in _OF_SPEC or name.startswith(_LABEL):
        key = name.removeprefix(_LABEL) or words.take_value("a label's key")
        read = _OF_SPEC.get(name) or (lambda spec: spec.labels.get(key, ""))
        compare, value = _COMPARISONS[words.take_operator(_EQUALITY)], words.take_value()
        found.checks.append(lambda spec: compare(read(spec), value))
    else:
        _refuse(place, f"{name[:30]!r} is no field to filter by; expected {_FIELDS}")


def _time(words: _Words) -> datetime:
    text = words.take_value()
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        _refuse(words.place, f"{text[:30]!r} is no time; expected one such as 2026-01-31T00:00:00Z")
    return time


def _refuse(place: int, problem: str) -> NoReturn:
    message = f"at character {place + 1}: {problem}"
    raise InvalidInput(f"filter, {message}", violations=[FieldViolation("filter", message)], reason="INVALID_FILTER")
