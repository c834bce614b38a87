"""A learner's default name, and whether it may start users' code."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from podracer_learner import config as module
from podracer_learner.config import LearnerConfig


def config(**settings: str | bool) -> LearnerConfig:
    return LearnerConfig(
        tokens=Path("tokens"), orchestrator="127.0.0.1:1", store="file:///s", **settings
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "name"), [("4f0c", "4f0c"), ("My_host.example", "My_host.example"), ("-ä ", "pod")]
)
def test_a_pod_without_a_name_has_its_hosts(host, name, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert config().pod_name() == f"projects/default/pods/{name}"
    assert config(pod="projects/p/pods/x").pod_name() == "projects/p/pods/x"


def test_who_listens_everywhere_is_reached_by_the_hosts_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "4f0c")
    assert config().reachable_address("0.0.0.0:50051") == "4f0c:50051"
    assert config().reachable_address("[::]:50051") == "4f0c:50051"
    assert config().reachable_address("127.0.0.1:50051") == "127.0.0.1:50051"
    assert config().reachable_address("unix:///run/learner.sock") == "unix:///run/learner.sock"
    assert (
        config(advertise="learner-0.pods:50051").reachable_address("0.0.0.0:7")
        == "learner-0.pods:50051"
    )


@pytest.mark.parametrize("version", [0, 1])
def test_a_fused_pod_starts_users_code_only_with_landlock(version, monkeypatch):
    monkeypatch.setattr(module, "landlock_version", lambda: version)
    assert config(layout="fused", allow_user_code=True).runs_user_code is (version > 0)
    assert not config(layout="fused").runs_user_code
    assert config(layout="split").runs_user_code
