"""What a service process says when it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podracer_platform.rpc import create_tokens

ROLES = ["worker", "evaluator", "learner"]
LEARNER = {
    "PODRACER_ORCHESTRATOR": "127.0.0.1:9",
    "PODRACER_POD": "projects/p/pods/a",
    "PODRACER_STORE": "file:///tmp/x",
}


def attempt(role: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PODRACER_")
    }
    environment |= (LEARNER if role == "learner" else {}) | settings
    command = [sys.executable, "-m", f"podracer_{role}"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    create_tokens(tmp_path / "tokens")
    return str(tmp_path / "tokens")


@pytest.mark.parametrize("role", ROLES)
def test_a_missing_setting_is_named(role):
    ended = attempt(role, {})
    assert ended.returncode == 2
    assert "PODRACER_TOKENS" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not ended.stdout


@pytest.mark.parametrize("role", ROLES)
def test_a_wrong_value_is_named(role, tokens):
    ended = attempt(role, {"PODRACER_TOKENS": tokens, "PODRACER_THREADS": "many"})
    assert ended.returncode == 2
    assert "PODRACER_THREADS" in ended.stderr
    assert "many" in ended.stderr


@pytest.mark.parametrize("role", ROLES)
def test_an_address_beyond_this_machine_needs_a_word(role, tokens):
    ended = attempt(role, {"PODRACER_TOKENS": tokens, "PODRACER_LISTEN": "0.0.0.0:0"})
    assert ended.returncode == 2
    assert "0.0.0.0" in ended.stderr


def test_a_split_learner_without_workers_is_refused(tokens):
    ended = attempt("learner", {"PODRACER_TOKENS": tokens, "PODRACER_LAYOUT": "split"})
    assert ended.returncode == 2
    assert "PODRACER_WORKERS" in ended.stderr
    assert "PODRACER_EVALUATORS" in ended.stderr


def test_a_folder_without_tokens_is_refused(tmp_path):
    ended = attempt("worker", {"PODRACER_TOKENS": str(tmp_path)})
    assert ended.returncode == 2
    assert str(tmp_path) in ended.stderr
