"""Environment variables -> settings."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from podracer_core.config import ByteSize, Seconds, Secret
from podracer_core.errors import InvalidInput
from podracer_platform.settings import load_settings
from support.errors import raises


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Settings:
    listen: str
    threads: int = 2
    fraction: float = 0.5
    json: bool = False
    folder: Path = Path("runs")
    lease_term: Seconds = 10.0
    memory: ByteSize = 0
    workers: tuple[str, ...] = ()
    layout: Literal["split", "fused"] = "split"
    colour: Colour = Colour.RED
    limit: int | None = None
    key: Secret | None = None


def test_every_kind_of_value():
    environment = {
        "PODRACER_LISTEN": "127.0.0.1:0",
        "PODRACER_THREADS": "4",
        "PODRACER_FRACTION": "1e-3",
        "PODRACER_JSON": "Yes",
        "PODRACER_FOLDER": "/var/lib",
        "PODRACER_LEASE_TERM": "1m30s",
        "PODRACER_MEMORY": "2Gi",
        "PODRACER_WORKERS": "a:1, b:2,",
        "PODRACER_LAYOUT": "fused",
        "PODRACER_COLOUR": "red",
        "PODRACER_LIMIT": "7",
        "PODRACER_KEY": "open sesame",
        "PODRACER_UNKNOWN": "is not ours to judge",
    }
    assert load_settings(Settings, environment) == Settings(
        "127.0.0.1:0", 4, 1e-3, True, Path("/var/lib"), 90.0, 2 << 30, ("a:1", "b:2"), "fused",
        Colour.RED, 7, Secret("open sesame"),
    )  # fmt: skip


def test_unset_and_empty_variables_leave_defaults():
    assert load_settings(Settings, {"PODRACER_LISTEN": "x", "PODRACER_THREADS": ""}) == Settings(
        "x"
    )


def test_every_mistake_is_told_at_once():
    environment = {
        "PODRACER_THREADS": "two",
        "PODRACER_FRACTION": "nan",
        "PODRACER_JSON": "maybe",
        "PODRACER_LEASE_TERM": "10x",
        "PODRACER_LAYOUT": "both",
        "PODRACER_COLOUR": "blue",
        "PODRACER_LIMIT": "few",
    }
    with pytest.raises(InvalidInput) as caught:
        load_settings(Settings, environment)
    assert [str(violation) for violation in caught.value.violations] == [
        "PODRACER_LISTEN: is not set; expected text",
        "PODRACER_THREADS: expected a whole number, got 'two'",
        "PODRACER_FRACTION: expected a number, got 'nan'",
        "PODRACER_JSON: expected true or false, got 'maybe'",
        "PODRACER_LEASE_TERM: expected a duration such as 90s, 10m or 1h30m, got '10x'",
        "PODRACER_LAYOUT: expected split or fused, got 'both'",
        "PODRACER_COLOUR: expected red, got 'blue'",
        "PODRACER_LIMIT: expected a whole number, got 'few'",
    ]
    assert "PODRACER_THREADS: expected a whole number, got 'two'" in caught.value.message


class TestSecrets:
    def test_from_a_file(self, tmp_path):
        (tmp_path / "key").write_text("open sesame\n")
        environment = {"PODRACER_LISTEN": "x", "PODRACER_KEY_FILE": str(tmp_path / "key")}
        settings = load_settings(Settings, environment)
        assert settings.key is not None
        assert settings.key.reveal() == "open sesame"

    def test_never_show_themselves(self):
        settings = Settings("x", key=Secret("open sesame"))
        assert "sesame" not in f"{settings} {settings!r} {settings.key}"

    def test_an_unreadable_file_and_a_second_source_are_told(self, tmp_path):
        environment = {"PODRACER_LISTEN": "x", "PODRACER_KEY_FILE": str(tmp_path / "none")}
        with raises(InvalidInput, "INVALID_SETTING", field="PODRACER_KEY", match="PODRACER_KEY"):
            load_settings(Settings, environment)
        with raises(
            InvalidInput, "INVALID_SETTING", field="PODRACER_KEY", match="PODRACER_KEY_FILE"
        ) as caught:
            load_settings(Settings, {**environment, "PODRACER_KEY": "open sesame"})
        assert "sesame" not in str(caught.value)


def test_another_prefix():
    assert load_settings(Settings, {"OTHER_LISTEN": "x"}, prefix="OTHER_") == Settings("x")
