"""Log lines for people and machines, without secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from podracer_core.config import Secret
from podracer_core.errors import InvalidInput
from podracer_platform.telemetry import configure_logging, redact, span


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


logger = logging.getLogger("podracer_test.part")


def test_text(capsys):
    configure_logging("learner")
    logger.info("granted %s", "work", extra={"fence": 7})
    logger.debug("not shown")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0].endswith(
        "Z INFO    learner podracer_test.part: granted work fence=7"
    )
    assert len(err.splitlines()) == 1


FORGED = (
    "lost\n2026-01-31T12:00:00.000Z INFO    learner podracer: "
    "SUCCEEDED\r\x1b]0;t\x07\x9b2J\u202e\ud800"
)


@pytest.mark.parametrize("json_lines", [False, True])
def test_what_an_environment_raises_neither_forges_a_line_nor_controls_the_terminal(
    capsys, monkeypatch, json_lines
):
    configure_logging("learner", json=json_lines)
    root = logging.getLogger()
    own = [
        handler for handler in root.handlers if not type(handler).__module__.startswith("_pytest")
    ]
    monkeypatch.setattr(root, "handlers", own)  # pytest cannot encode what it captures
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        logger.exception("it raised %s", error, extra={"why": FORGED})
    err = capsys.readouterr().err
    assert not set(err) - {"\n"} & {
        chr(code) for code in (*range(32), *range(127, 160), 0x202E, 0xD800)
    }
    lines = err.splitlines()
    if json_lines:
        (entry,) = map(json.loads, lines)
        assert entry["why"] == FORGED
    else:
        assert all(line.startswith("  ") for line in lines[1:])
        assert r"SUCCEEDED\u000d\u001b]0;t\u0007\u009b2J\u202e\ud800" in err


def test_json(capsys):
    configure_logging("learner", "debug", json=True)
    try:
        raise ValueError("token=abcdefg")
    except ValueError:
        logger.exception(
            "line one\nline two",
            extra={"score": float("inf"), "count": 3, "agent": None, "message_id": "ü"},
        )
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line, parse_constant=pytest.fail)
    assert entry["time"].endswith("Z")
    expected = {"level": "ERROR", "service": "learner", "logger": "podracer_test.part",
        "message": "line one\nline two",
                "score": "inf", "count": 3, "agent": None, "message_id": "ü"}  # fmt: skip
    assert expected.items() <= entry.items()
    assert "ValueError: token=***" in entry["exception"]


def test_within_a_span_a_line_has_its_ids(capsys, kept):
    configure_logging("learner", json=True)
    with span("x", begins=True):
        logger.info("within")
    logger.info("outside")
    within, outside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (within["trace_id"], within["span_id"]) == (
        kept["x"].context.trace_id,
        kept["x"].context.span_id,
    )
    assert not {"trace_id", "span_id"} & outside.keys()


def test_a_second_call_replaces_the_first(capsys):
    configure_logging("learner")
    configure_logging("worker", "WARNING")
    logger.info("not shown")
    logger.warning("once")
    err = capsys.readouterr().err
    assert err.count("once") == 1
    assert "worker" in err
    assert "not shown" not in err


def test_an_unknown_level():
    with pytest.raises(InvalidInput, match="level 'loud'"):
        configure_logging("learner", "loud")


@pytest.mark.parametrize("as_json", [False, True])
def test_secrets_are_hidden(capsys, as_json):
    configure_logging("learner", "INFO", json=as_json)
    logger.info("metadata %s", {"authorization": "Bearer sesame-123456"})
    logger.info(
        "x",
        extra={"lease_token": "sesame", "S3_SECRET_KEY": "sesame", "keys": {"password": "sesame"}},
    )
    logger.info("store %s", "https://user:sesame@host/path")
    logger.info("%r", Secret("sesame"))
    logger.info("lease.l-1.7.sesamesesamesesame_-x admits")
    err = capsys.readouterr().err
    assert "sesame" not in err
    assert err.count("***") >= 5


@pytest.mark.parametrize(
    "text",
    [
        "tokens per second: fast",
        "listening on unix:///run/x.sock",
        "http://127.0.0.1:8080/a",
        "a@b.c",
        "lease l-1 expired",
        "the bearer of news",
        "secretary=x",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_writes_to_the_present_stderr():
    configure_logging("learner")
    assert any(
        getattr(handler, "stream", None) is sys.stderr for handler in logging.getLogger().handlers
    )
