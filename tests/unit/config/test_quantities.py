"""Durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podracer_core.config import format_seconds, parse_bytes, parse_seconds
from podracer_core.errors import InvalidInput
from support.errors import raises


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("90s", 90), ("1h30m", 5400), ("1d2h3m4.5s", 93784.5), ("250ms", 0.25), ("0", 0), ("7.5", 7.5),
     (" 1s ", 1), (".5h", 1800), (15, 15), (1.5, 1.5)],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "s", "-1s", "1s1m", "1 0s", "1w", "1e3", "inf", "nan", "1_0s", -1, True,
                                  float("inf"), float("nan"), 1e12, "99999999999999s"])  # fmt: skip
def test_what_is_no_duration(text):
    with raises(InvalidInput, "INVALID_DURATION"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2Gi", 2 << 30), ("512Mi", 512 << 20), ("1k", 1000), ("1Ki", 1024), ("1.5GiB", 3 << 29), ("3TB", 3 * 10**12),
     ("0", 0), ("17", 17), (17, 17), (2e9, 2 * 10**9)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "Gi", "-1", "1.5", "2gi", "2 G i", "1e3", "nan", 1.5, -1, True, 1e30]
)
def test_what_is_no_size(text):
    with raises(InvalidInput, "INVALID_SIZE"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (7.46, "7.5s"), (15.0, "15s"), (60, "1m"), (5400, "1h30m"), (90061, "1d1h1m1s")],
)
def test_format(seconds, text):
    assert format_seconds(seconds) == text


@given(st.integers(min_value=0, max_value=10**9))
def test_what_is_formatted_is_read_again(seconds):
    assert parse_seconds(format_seconds(seconds)) == seconds
