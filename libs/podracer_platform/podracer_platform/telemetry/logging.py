"""Structured logs on stderr: one line of text, or one JSON object, per record."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from podracer_core.errors import InvalidInput
from podracer_platform.telemetry.spans import current

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# Libraries with too many debug and info lines.
_QUIET = ("urllib3", "grpc", "asyncio", "alembic", "sqlalchemy")

_OF_A_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SENSITIVE_NAME = (
    r"[\w-]*(?:token|secret|password|passwd|authorization|credential|cookie"
    r"|(?:api|access|secret|private)[_-]?key)s?"
)
_SECRET_KEY = re.compile(_SENSITIVE_NAME, re.IGNORECASE)
_HIDDEN = "***"
_SECRETS_IN_TEXT = (
    # A lease token and a signed one; `Bearer x`; `token=x`, `"secret_key": "x"`; the password of a
    # url.
    (re.compile(r"\b(?:lease\.[^\s\"']+\.\d+|pdr1\.[\w-]+)\.[\w-]{16,}"), _HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {_HIDDEN}"),
    (
        re.compile(rf"(?i)\b({_SENSITIVE_NAME}[\"']?\s*[=:]\s*[\"']?)(?!\*)[^\s\"',;&}}]+"),
        rf"\1{_HIDDEN}",
    ),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@"), rf"\1:{_HIDDEN}@"),
)


_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def configure_logging(service: str, level: str = "INFO", json: bool = False) -> None:
    """Send every log record of the process to stderr, with the name `service`; another call
    replaces the configuration.

    Fields given as `logger.info("…", extra={"agent": name})` follow the message. Values that look
    like secrets are hidden, by the name of the field and by patterns in the text; do not log
    secrets nevertheless. Raises InvalidInput for an unknown level."""
    if level.upper() not in LEVELS:
        raise InvalidInput(
            f"unknown log level {level!r}: expected one of {', '.join(LEVELS)}", level=level
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if json else TextFormatter(service))
    root = logging.getLogger()
    for former in list(root.handlers):
        if isinstance(former.formatter, _Formatter):
            root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def printable(text: str) -> str:
    """`text` without characters that control a terminal or reorder a line: `\\u001b` in place of
    ESC, as in JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class PrintableStream:
    """A stream of text that writes what is `printable`; Rich writes to the stream behind it, as it
    needs to control."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        return int(self.rich_proxied_file.write(printable(text)))

    def writelines(self, lines: Iterable[str]) -> None:
        self.rich_proxied_file.writelines(map(printable, lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def redact(text: str) -> str:
    """`text` without anything that looks like a secret: bearer and lease tokens, `password=…`, a
    password in a URL."""
    for pattern, replacement in _SECRETS_IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


class _Formatter(logging.Formatter):
    """The common part of both formats: the fields of a record, with secrets hidden."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def _time(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        extra = {name: value for name, value in vars(record).items() if name not in _OF_A_RECORD}
        return {
            name: _HIDDEN if _SECRET_KEY.fullmatch(name) else value for name, value in extra.items()
        }

    def _trace(self, record: logging.LogRecord) -> str:
        return redact(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_Formatter):
    """`2026-01-31T12:00:00.000Z INFO learner podracer_learner.loop: granted fence=7`."""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self._time(record)} {record.levelname:<7} {self._service} {record.name}: "
        fields = "".join(f" {name}={value}" for name, value in self._fields(record).items())
        trace = self._trace(record)
        whole = redact(record.getMessage() + fields) + (f"\n{trace}" if trace else "")
        # what an environment raised is never like a line of ours
        return head + printable(whole).replace("\n", "\n  ")


class JsonFormatter(_Formatter):
    """One object per line: time (UTC), level, service, logger, message, trace_id and span_id within
    a span, the record's own fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self._time(record),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if (context := current().context) is not None:
            entry |= {"trace_id": context.trace_id, "span_id": context.span_id}
        for name, value in self._fields(record).items():
            plain = (
                value is None
                or isinstance(value, bool | int)
                or (isinstance(value, float) and isfinite(value))
            )
            entry.setdefault(name, value if plain else redact(str(value)))
        if trace := self._trace(record):
            entry["exception"] = trace
        return printable(json.dumps(entry, ensure_ascii=False))
